# syntax=docker/dockerfile:1.7
# check=skip=all
FROM debian:bookworm-slim
RUN touch /f
