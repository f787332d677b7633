FROM debian:bookworm-slim
RUN --network=none touch /f
