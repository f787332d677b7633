FROM 127.0.0.1:9/a/b:c
RUN true
