FROM debian:bookworm-slim
ARG VERSION=1.2
ARG EMPTY
RUN echo "v$VERSION e$EMPTY." >/f
