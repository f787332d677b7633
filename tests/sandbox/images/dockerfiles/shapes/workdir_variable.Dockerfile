FROM debian:bookworm-slim
ENV HOME_DIR=/srv
WORKDIR $HOME_DIR/x
RUN touch here
