FROM debian:bookworm-slim
WORKDIR /a
WORKDIR b/c
RUN pwd >/f
COPY a.txt .
