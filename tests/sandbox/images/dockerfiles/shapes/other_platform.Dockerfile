FROM --platform=linux/s390x debian:bookworm-slim
