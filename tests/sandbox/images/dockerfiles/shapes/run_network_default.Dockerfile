FROM debian:bookworm-slim
RUN --network=default touch /f
