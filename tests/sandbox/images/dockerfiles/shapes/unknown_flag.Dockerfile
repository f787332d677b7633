FROM debian:bookworm-slim
COPY --form=x a.txt /
