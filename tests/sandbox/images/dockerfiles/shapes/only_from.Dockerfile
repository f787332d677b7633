ARG NONE
FROM debian:bookworm-slim
