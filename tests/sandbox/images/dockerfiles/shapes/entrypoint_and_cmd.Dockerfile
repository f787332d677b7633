FROM debian:bookworm-slim
ENTRYPOINT ["/bin/sh", "-c"]
CMD ["echo never"]
RUN touch /f
