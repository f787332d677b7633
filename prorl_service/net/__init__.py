"""What clients, servers and engines share on HTTP: credentials, guards of requests, sockets."""
