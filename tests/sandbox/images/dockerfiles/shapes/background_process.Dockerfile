FROM debian:bookworm-slim
RUN sleep 86399 & echo started >/f
