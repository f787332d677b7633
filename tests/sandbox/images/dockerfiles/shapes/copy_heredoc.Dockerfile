FROM debian:bookworm-slim
ENV NAME=value
COPY <<EOF <<"PLAIN" /etc/made/
name=$NAME
EOF
name=$NAME
PLAIN
