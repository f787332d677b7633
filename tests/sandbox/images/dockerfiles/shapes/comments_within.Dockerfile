# first
FROM debian:bookworm-slim
RUN echo a >/f && \
    # a comment between continued lines

    echo b >>/f && \
# another
    echo '# no comment' >>/f
