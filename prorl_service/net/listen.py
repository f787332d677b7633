"""The socket of a server, bound before the server does anything slow."""

import socket

from prorl_service.errors import ProRLError
from prorl_service.net.keepalive import NOTICE_VANISHED


def listener(host: str, port: int) -> socket.socket:
    """Returns a bound socket, which refuses connections until a server listens on it. Raises
    `ProRLError`."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        problem = f"cannot listen on {host!r}: {error.strerror}"
        raise ProRLError(problem, hint="pass an address of this machine as --host") from error
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for option in NOTICE_VANISHED:
        bound.setsockopt(*option)  # accepted sockets inherit them
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        problem = f"cannot listen on {host}:{port}: {error.strerror}"
        raise ProRLError(problem, hint="choose another --port") from error
    return bound
