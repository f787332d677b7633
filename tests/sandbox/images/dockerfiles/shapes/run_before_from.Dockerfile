RUN true
FROM debian:bookworm-slim
