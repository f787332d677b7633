FROM debian:bookworm-slim
ARG FILE=a
ENV TO=/to
COPY ${FILE}.txt $TO/
