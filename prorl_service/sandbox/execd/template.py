"""The one program of a container that is a template: forks a sandbox of it whenever it is told to.

A message on standard input, a socket of packets, is the JSON of `Order` with two descriptors: the
new sandbox's connection and where it writes its messages. The answer is a descriptor of the new
process. The template runs nothing of the model's, and its end is the end of all its sandboxes: it
is the first process of the container's PID namespace.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import sys

from . import linux, nest
from .handover import receive_fds
from .server import CONNECTION, serve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypedDict

    class Order(TypedDict):
        nest: dict[str, Any]
        """Arguments of `nest.enter` but `runtime`."""
        environment: dict[str, str]
        """Over the container's own."""
        filter: str
        """System-call filter, in hexadecimal digits."""
        serve: dict[str, Any]
        """Arguments of `server.serve`."""


RUNTIME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MAX_ORDER_BYTES = 1 << 16
_CONTAINERS_OWN = ("APPTAINER_", "SINGULARITY_", "PROMPT_COMMAND", "PS1")


def main() -> None:
    """Serve until the connection ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits: the service holds descriptors
    for name in [name for name in os.environ if name.startswith(_CONTAINERS_OWN)]:
        del os.environ[name]
    # A user may have as many descriptors under way between processes as the sender may have open;
    # its sandboxes, which are the same user's, may have fewer.
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
    pid = linux.fork_into(nest.NAMESPACES)
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
        nest.enter(runtime=RUNTIME, **order["nest"])
        linux.filter_system_calls(bytes.fromhex(order["filter"]))
        serve(**order["serve"])
    except BaseException as error:  # the boundary: what went wrong is for the service to read
        os.write(2, f"{type(error).__name__}: {error}".encode())
    os._exit(1)


def probe() -> None:
    """Exit with 0 if a sandbox can be made here, with what is in the way otherwise."""
    pid = linux.fork_into(nest.NAMESPACES)
    if pid == 0:
        nest.enter(runtime=RUNTIME, workdir="/workspace", disk_mb=1)
        os._exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
