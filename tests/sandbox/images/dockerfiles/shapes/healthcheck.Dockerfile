FROM debian:bookworm-slim
HEALTHCHECK --interval=5s --retries=3 CMD curl -f http://localhost/ || exit 1
STOPSIGNAL SIGTERM
RUN touch /f
