FROM debian:bookworm-slim
RUN mkdir -m 777 /w
USER 1234:2345
RUN id -u >/w/f && id -g >>/w/f
