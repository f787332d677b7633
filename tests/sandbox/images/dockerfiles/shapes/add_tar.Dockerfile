FROM debian:bookworm-slim
ADD tree.tar /opt/
