FROM debian:bookworm-slim
RUN echo zero >/f
FROM debian:bookworm-slim
COPY --from=0 /f /g
