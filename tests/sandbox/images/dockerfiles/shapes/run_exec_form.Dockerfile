FROM debian:bookworm-slim
RUN ["/bin/bash", "-c", "echo $0 > /f", "zero"]
