FROM debian:bookworm-slim
COPY dir /target
