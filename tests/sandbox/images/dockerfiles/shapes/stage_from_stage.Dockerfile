FROM debian:bookworm-slim AS base
ENV A=1
WORKDIR /w
FROM base
RUN echo $A >f
