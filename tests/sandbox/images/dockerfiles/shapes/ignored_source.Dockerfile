FROM debian:bookworm-slim
COPY b.txt /
