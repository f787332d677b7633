"""Options of TCP sockets by which a peer that vanishes without a word is noticed, on either side.

Without them the kernel waits two hours for a silent peer, a quarter of an hour for one that
confirms nothing, and as long as it likes for one that confirms all and reads nothing.
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
        if hasattr(socket, name)  # trainers may run where the kernel is not Linux
    ),
]
"""Arguments of `socket.setsockopt`."""
