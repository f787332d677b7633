FROM debian:bookworm-slim AS one
FROM debian:bookworm-slim
COPY --from=one /absent /x
