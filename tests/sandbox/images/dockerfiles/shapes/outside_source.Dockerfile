FROM debian:bookworm-slim
COPY ../secret /
