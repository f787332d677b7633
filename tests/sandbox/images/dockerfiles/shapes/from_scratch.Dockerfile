FROM debian:bookworm-slim AS base
FROM scratch
COPY --from=base / /
COPY a.txt /only.txt
