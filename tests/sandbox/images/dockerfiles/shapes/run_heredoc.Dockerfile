FROM debian:bookworm-slim
RUN <<EOF
set -e
echo one >/f
echo "two $HOME" >>/f
EOF
