FROM debian:bookworm-slim
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN [[ 1 == 1 ]] && echo ${BASH_VERSION} >/f
