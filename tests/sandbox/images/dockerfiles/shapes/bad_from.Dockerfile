FROM Debian:Bookworm
RUN true
