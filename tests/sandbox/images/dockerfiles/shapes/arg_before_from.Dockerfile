ARG TAG=bookworm-slim
FROM debian:${TAG}
ARG TAG
RUN echo "tag $TAG" >/f
