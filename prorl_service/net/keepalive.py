"""TCP socket options that detect a peer which vanished silently, on either side.

Without them the kernel waits two hours for a silent peer, a quarter of an hour for one that
acknowledges nothing, and forever for one that acknowledges everything and reads nothing.
"""

import socket

NOTICED_WITHIN_S = 60
PROBES = 3

_OPTIONS = {
    "TCP_KEEPIDLE": NOTICED_WITHIN_S // 2,
    "TCP_KEEPINTVL": NOTICED_WITHIN_S // (2 * PROBES),
    "TCP_KEEPCNT": PROBES,
    "TCP_USER_TIMEOUT": NOTICED_WITHIN_S * 1000,
}
NOTICE_VANISHED = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in _OPTIONS.items()
        if hasattr(socket, name)  # trainers may run on systems other than Linux
    ),
]
"""Arguments of `socket.setsockopt`."""
