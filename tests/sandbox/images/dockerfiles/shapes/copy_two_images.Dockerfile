FROM debian:bookworm-slim AS debian
RUN echo stage >/f
FROM debian:bookworm-slim
ARG WHICH=debian
COPY --from=debian /f /f
RUN --mount=type=bind,from=debian:bookworm-slim,target=/m test -e /m/etc/passwd && test ! -e /m/f
