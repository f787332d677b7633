FROM debian:bookworm-slim
RUN <<EOF
#!/bin/bash
[[ a == a ]] && echo bash >/f
EOF
