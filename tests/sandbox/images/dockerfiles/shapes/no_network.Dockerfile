FROM debian:bookworm-slim
RUN (: </dev/tcp/127.0.0.1/9) 2>/dev/null; wc -l </proc/net/dev >/f
