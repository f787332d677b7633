"""The Jupyter client of one kernel: requests of the execution server in, the kernel's replies out.

A separate program on the service's Python, since the server uses only the standard library.
Standard input and output are pipes to the server, in frames of `execd.protocol`; see `execd.kernel`
for the options, which are JSON in a variable. It ends when the server does; when the kernel ends,
the server ends it. Only the shell channel is used: `launch` says how the rest travels.
"""

import json
import os
import sys
from typing import Any

REQUESTS, REPLIES = 0, 1
_READ_BYTES = 1 << 16


def main() -> None:
    options = json.loads(os.environ.pop("PRORL_KERNEL"))
    sys.path += [options["packages"], os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    # These imports take longest, and the kernel starts at the same time.
    import jupyter_client.session
    import zmq

    if not os.read(options["ready"], 1):
        return
    session = jupyter_client.session.Session(key=options["key"].encode())
    connection = options["connection"]
    shell = zmq.Context().socket(zmq.DEALER)
    shell.connect(f"ipc://{connection['ip']}-{connection['shell_port']}")
    relay(session, shell)


def relay(session: Any, shell: Any) -> None:
    """Relays until the server is gone."""
    import zmq
    from execd.protocol import FrameDecoder, encode  # type: ignore[import-not-found]

    decoder = FrameDecoder(max_payload_bytes=1 << 30)
    poller = zmq.Poller()
    poller.register(REQUESTS, zmq.POLLIN)
    poller.register(shell, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if shell in ready:
            _, message = session.recv(shell)
            os.write(REPLIES, encode(message["content"]))
        if REQUESTS in ready:
            data = os.read(REQUESTS, _READ_BYTES)
            if not data:
                os._exit(0)
            for _, code in decoder.feed(data):
                session.send(shell, "execute_request", _request(code.decode()))


def _request(code: str) -> dict[str, Any]:
    return {
        "code": code,
        "silent": False,
        "store_history": True,
        "user_expressions": {},
        "allow_stdin": False,
        # The queue never has a second request, but the next may come while an error empties it.
        "stop_on_error": False,
    }


if __name__ == "__main__":
    main()
