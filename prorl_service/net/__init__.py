"""HTTP basics shared by clients, servers and engines: credentials, request guards, sockets."""
