FROM debian:bookworm-slim
COPY . /app/
