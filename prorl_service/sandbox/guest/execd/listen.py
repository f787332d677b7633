"""Ports on the sandbox's loopback that the service itself answers.

The socket is made here, in the sandbox's network, and handed over: no process inside forwards
anything, and the port lives as long as the service keeps the socket.
"""

import socket

from .fd_passing import LISTENER, send_fds
from .request import Request

BACKLOG = 128


def listen(handover: "socket.socket | None", request: Request) -> None:
    """Answers with the port; `port` 0 takes a free one."""
    if handover is None:
        request.fail("this server passes no descriptors")
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", request.arguments["port"]))
        listener.listen(BACKLOG)
        listener.setblocking(False)
        send_fds(handover, [listener.fileno()], LISTENER)
        request.reply(port=listener.getsockname()[1])
