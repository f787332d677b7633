FROM debian:bookworm-slim
ARG A=arg
ENV B=${A}-env C=${NONE:-default}
RUN echo $B $C >/f
