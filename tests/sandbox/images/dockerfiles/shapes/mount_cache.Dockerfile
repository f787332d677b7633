FROM debian:bookworm-slim
RUN --mount=type=cache,target=/var/cache/x echo 1 >/var/cache/x/f && echo ok >/f
