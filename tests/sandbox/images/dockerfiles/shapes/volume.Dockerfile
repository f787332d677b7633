FROM debian:bookworm-slim
RUN mkdir /data && echo kept >/data/f
VOLUME ["/data"]
