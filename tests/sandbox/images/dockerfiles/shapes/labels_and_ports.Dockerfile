FROM debian:bookworm-slim
LABEL a=b "c d"="e f"
EXPOSE 80/tcp 443
MAINTAINER somebody
RUN touch /f
