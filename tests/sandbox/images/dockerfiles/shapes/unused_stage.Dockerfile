FROM debian:bookworm-slim AS unused
RUN touch /unused
FROM debian:bookworm-slim
RUN touch /used
