"""The one program of a zygote: forks a sandbox for each order.

A message on standard input, a socket of packets, is the JSON of `Order` with two descriptors: the
new sandbox's connection and where it writes its messages. The answer is a descriptor of the new
process. The zygote never runs a model's commands. In a container its end is the end of all its
sandboxes: it is the first process of the PID namespace.
"""

import gc
import json
import os
import resource
import signal
import socket
import sys
from typing import Any, TypedDict

from . import linux, namespaces
from .fd_passing import DOOR, fetch, receive_fds
from .limits import be_killed_first
from .server import CONNECTION, serve


class Order(TypedDict):
    namespaces: dict[str, Any] | None
    """Arguments of `namespaces.enter`, without `runtime`; None if it is not isolated."""
    environment: dict[str, str]
    """Variables that are set over the container's own."""
    filter: str
    """System-call filter, in hexadecimal digits; empty for none."""
    serve: dict[str, Any]
    """Arguments of `server.serve`."""


RUNTIME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MAX_ORDER_BYTES = 1 << 16
_CONTAINERS_OWN = ("APPTAINER_", "SINGULARITY_", "PROMPT_COMMAND", "PS1")
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")
_ENGINES_OWN = ("container", "HOSTNAME", *_PROXIES, *map(str.upper, _PROXIES))


def main_at_door() -> None:
    """Serves as `main`, with a control socket that it gets at the door, mounted at `mnt`."""
    fetch(f"{RUNTIME}/mnt/{DOOR}")
    for name in _ENGINES_OWN:
        os.environ.pop(name, None)
    main()


def main() -> None:
    """Serves until the connection ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no waiting here: the service holds descriptors
    for name in [name for name in os.environ if name.startswith(_CONTAINERS_OWN)]:
        del os.environ[name]
    # A user may have as many descriptors in flight between processes as the sender may have open;
    # its sandboxes, which are the same user's, may have half of that.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.freeze()  # a collection would write to pages that all sandboxes share
    control = socket.socket(fileno=0)
    control.send(b"done")
    while True:
        message, fds = receive_fds(control, MAX_ORDER_BYTES, 2)
        if not message:
            os._exit(0)
        try:
            fds.append(_fork(json.loads(message), *fds))
            socket.send_fds(control, [b"done"], fds[-1:])
        except OSError as error:  # a sandbox whose descriptor is not sent has no connection
            control.send(str(error).encode())
        for fd in fds:
            os.close(fd)


def _fork(order: Order, connection: int, messages: int) -> int:
    pid = linux.fork_into(namespaces.NAMESPACES if order["namespaces"] else 0)
    if pid:
        return os.pidfd_open(pid)
    try:
        os.setsid()
        for fd in (1, 2):
            os.dup2(messages, fd)
        os.dup2(connection, CONNECTION)
        os.closerange(3, 64)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.update(order["environment"])
        be_killed_first()
        written = []
        if order["namespaces"]:
            written = namespaces.enter(runtime=RUNTIME, **order["namespaces"])
        if order["filter"]:
            linux.filter_system_calls(bytes.fromhex(order["filter"]))
        serve(**order["serve"], written=written)
    except BaseException as error:  # the boundary: the service reads what went wrong
        os.write(2, f"{type(error).__name__}: {error}".encode())
    os._exit(1)


def probe(arguments: str) -> None:
    """Exits with 0 if a sandbox can be made here, otherwise with the error as a message.

    `arguments` is the JSON of `namespaces` in `Order`.
    """
    sys.exit(_try_to_enter(arguments))


def probe_at_door(arguments: str) -> None:
    """Does the same, in a container whose control socket comes from the door; answers as `main`."""
    fetch(f"{RUNTIME}/mnt/{DOOR}")
    if _try_to_enter(arguments) == 0:
        socket.socket(fileno=0).send(b"done")


def _try_to_enter(arguments: str) -> int:
    pid = linux.fork_into(namespaces.NAMESPACES)
    if pid == 0:
        namespaces.enter(runtime=RUNTIME, **json.loads(arguments))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
