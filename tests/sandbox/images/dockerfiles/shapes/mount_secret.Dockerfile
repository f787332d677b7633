FROM debian:bookworm-slim
RUN --mount=type=secret,id=token true
