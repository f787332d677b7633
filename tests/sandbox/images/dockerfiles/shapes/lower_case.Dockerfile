from debian:bookworm-slim as x
run touch /f
