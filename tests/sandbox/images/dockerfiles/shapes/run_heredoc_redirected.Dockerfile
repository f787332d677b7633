FROM debian:bookworm-slim
RUN cat <<'EOF' >/f && cat <<-"END" >>/f
first $HOME
EOF
	second
	END
