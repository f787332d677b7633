FROM debian:bookworm-slim
COPY *.txt dir/?.txt /texts/
