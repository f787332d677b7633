FROM debian:bookworm-slim AS src
RUN echo src >/s
FROM debian:bookworm-slim
RUN --mount=type=bind,from=src,source=/s,target=/mnt/s cat /mnt/s >/f
