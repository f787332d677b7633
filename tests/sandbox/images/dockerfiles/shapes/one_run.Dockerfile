FROM debian:bookworm-slim
RUN echo made >/made
