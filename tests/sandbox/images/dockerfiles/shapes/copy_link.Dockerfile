FROM debian:bookworm-slim
COPY --link a.txt /a.txt
