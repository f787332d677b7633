FROM debian:bookworm-slim
COPY --chown=65534:65534 --chmod=640 a.txt /a.txt
RUN stat -c '%u:%g %a' /a.txt >/f
