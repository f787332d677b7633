FROM debian:bookworm-slim AS one
RUN true
FROM debian:bookworm-slim
COPY --from=one /etc/passwd /p

RUN cat /absent
