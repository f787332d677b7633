FROM debian:bookworm-slim
RUN true
ONBUILD RUN true
