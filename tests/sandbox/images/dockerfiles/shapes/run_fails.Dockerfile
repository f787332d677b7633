FROM debian:bookworm-slim
RUN echo fine
RUN echo the last words >&2; \
    exit 3
RUN echo never
