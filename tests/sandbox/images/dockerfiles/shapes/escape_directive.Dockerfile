# escape=`
FROM debian:bookworm-slim
RUN echo a >/f && `
    echo b >>/f
