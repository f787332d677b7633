FROM debian:bookworm-slim AS a
USER nobody
FROM a
USER root
RUN id -u >/f
