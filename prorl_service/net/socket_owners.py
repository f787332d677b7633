"""Owners of the servers that listen on this machine, as Linux reports them in /proc/net."""

import ipaddress
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTEN = "0A"
OVERFLOW_USER = 65534
"""User id that the kernel reports in a user namespace for users outside it."""
NO_NAMESPACE = ["0", "0", "4294967295"]
LOCALHOST = ("127.0.0.1", "::1")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def users_listening(host: str, port: int) -> set[int]:
    """Returns the user ids of the servers that connections to `host`, a loopback address or
    "localhost", may reach. Empty if no server listens yet, or if the kernel does not report it."""
    listening = _listening()
    users: set[int] = set()
    for name in LOCALHOST if host == "localhost" else (host,):
        found = (listening[f"{_hex(one)}:{port:04X}"] for one in _bound_to(name))
        users |= next(filter(None, found), set())
    return users - {OVERFLOW_USER} if _is_in_user_namespace() else users


def _is_in_user_namespace() -> bool:
    try:
        return Path("/proc/self/uid_map").read_text().split() != NO_NAMESPACE
    except OSError:
        return False


def _bound_to(name: str) -> list[Address]:
    """Returns the addresses that a server of `name` may be bound to; the kernel prefers the
    first."""
    address, any_v6 = ipaddress.ip_address(name), ipaddress.IPv6Address("::")
    if address.version == 6:
        return [address, any_v6]
    mapped = ipaddress.IPv6Address(f"::ffff:{address}")
    return [address, mapped, ipaddress.IPv4Address("0.0.0.0"), any_v6]


def _listening() -> defaultdict[str, set[int]]:
    """Returns user ids, keyed by address and port as the kernel writes them."""
    users: defaultdict[str, set[int]] = defaultdict(set)
    for table in TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                _, local, _, state, _, _, _, user, *_ = line.split()
                if state == LISTEN:
                    users[local].add(int(user))
    return users


def _hex(address: Address) -> str:
    """Returns the address as 32-bit words in the machine's byte order."""
    packed = address.packed
    words = (packed[start : start + 4] for start in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
