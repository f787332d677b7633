FROM debian:bookworm-slim
ADD http://127.0.0.1:9/file /x
