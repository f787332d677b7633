FROM local:absent-image
RUN true
