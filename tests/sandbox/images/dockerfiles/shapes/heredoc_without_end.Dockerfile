FROM debian:bookworm-slim
RUN <<EOF
true
