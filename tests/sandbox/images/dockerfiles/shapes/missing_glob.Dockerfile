FROM debian:bookworm-slim
COPY *.absent /x/
