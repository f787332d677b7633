FROM --platform=$BUILDPLATFORM debian:bookworm-slim
ARG TARGETARCH
RUN echo arch $TARGETARCH >/f
