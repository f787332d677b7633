FROM debian:bookworm-slim
ENV PATH=/opt/tools:$PATH
COPY run.sh /opt/tools/run
