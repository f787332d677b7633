FROM debian:bookworm-slim
COPY a.txt \
  absent.txt /x/
