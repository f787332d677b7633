FROM debian:bookworm-slim
COPY ["with space.txt", "/with space.txt"]
