FROM debian:bookworm-slim
RUN mkdir /real && ln -s /real /link && ln -s missing /dangling
COPY a.txt /link/
