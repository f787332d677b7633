FROM debian:bookworm-slim
RUN --mount=type=tmpfs,target=/scratch echo x >/scratch/f && touch /f
