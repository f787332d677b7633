"""Services on hosts of their own: network namespaces on a bridge, which only this machine can see.

Delays are those of this machine: its kernel need not know `netem`.
"""

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

NETWORK = "198.18.78"
"""A network set aside for measurements (RFC 2544)."""
BRIDGE = "prorl-bench"
HERE = f"{NETWORK}.1"
"""Address of the host that has the front and the engine."""
PORT = 8080


@dataclass(slots=True)
class Host:
    """A host with one service."""

    number: int
    directory: Path
    options: Sequence[str]
    process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        """Name of the namespace, of its link and of its service at the front."""
        return f"prorl-h{self.number}"

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number + 2}"

    def link(self, state: str) -> None:
        """`state`: up or down. Nobody is told: there is no RST."""
        _ip("link", "set", self.name, state)

    def start(self) -> None:
        command = [
            *("setpriv", "--pdeathsig", "TERM", "ip", "netns", "exec", self.name),
            *(sys.executable, "-m", "prorl_service.cli", "serve", "--journal", "none"),
            *("--host", self.address, "--port", str(PORT)),
            *("--announce", str(self.directory / "services" / f"{self.name}.json")),
            *self.options,
        ]
        with (self.directory / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@contextmanager
def hosts(count: int, directory: Path, options: Sequence[str]) -> Iterator[list[Host]]:
    """Starts so many hosts, each with a service that has these options. Needs root and iproute2."""
    with ExitStack() as stack:
        _added(stack, ["link", "add", BRIDGE, "type", "bridge"], ["link", "delete", BRIDGE])
        _ip("address", "add", f"{HERE}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        running = [Host(number, directory, options) for number in range(count)]
        for one in running:
            _connect(stack, one)
            one.start()
            stack.callback(_quietly, one.kill)
        yield running


def token_file(directory: Path) -> Path:
    """Makes a token, which listeners beyond loopback need."""
    file = directory / "token"
    file.touch(0o600)
    file.write_text(secrets.token_hex(16))
    return file


def _connect(stack: ExitStack, host: Host) -> None:
    name, inside = host.name, ("-n", host.name)
    _added(stack, ["netns", "add", name], ["netns", "delete", name])
    peer = ("peer", "name", "eth0", "netns", name)
    _added(stack, ["link", "add", name, "type", "veth", *peer], ["link", "delete", name])
    _ip("link", "set", name, "master", BRIDGE, "up")
    _ip(*inside, "address", "add", f"{host.address}/24", "dev", "eth0")
    _ip(*inside, "link", "set", "eth0", "up")
    _ip(*inside, "link", "set", "lo", "up")


def _added(stack: ExitStack, add: Sequence[str], remove: Sequence[str]) -> None:
    _ip(*add)
    stack.callback(_quietly, lambda: _ip(*remove))


def _quietly(action: Callable[[], None]) -> None:
    with suppress(subprocess.CalledProcessError):
        action()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
