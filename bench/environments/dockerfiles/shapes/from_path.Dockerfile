FROM /etc
RUN true
