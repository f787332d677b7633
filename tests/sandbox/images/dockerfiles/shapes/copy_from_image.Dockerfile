FROM debian:bookworm-slim AS whatever
COPY --from=debian:bookworm-slim /etc/passwd /passwd
