FROM debian:bookworm-slim
ADD a.txt /opt/
