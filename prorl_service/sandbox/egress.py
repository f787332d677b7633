"""The way out of a sandbox, where a task may have one: an HTTP proxy that the service answers.

A sandbox has no network. The proxy is on a port of its loopback whose socket the service holds
(`Sandbox.listen`), so that it needs no privileges; it connects to the hosts that a policy allows,
by CONNECT or for plain HTTP, and counts them. Addresses that are not public are reached only if the
policy names them: a sandbox must not find the services of the cluster. It reads no content.
"""

import asyncio
import contextlib
import fnmatch
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10
HEAD_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 30.0
COPY_BYTES = 1 << 16
MAX_HOSTS = 1000
"""Hosts that are counted by name; more are counted together."""
OTHERS = "others"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be reached."""

    mode: Literal["allowlist", "public"]
    hosts: Sequence[str] = ()
    """Names, `*.NAME` for its subdomains, addresses, ranges such as 192.0.2.0/24."""

    def allows_name(self, host: str) -> bool:
        """Returns whether a host may be looked up at all."""
        if self.mode == "public":
            return True
        address = _address(host)
        if address is not None:
            return self.names_address(address)
        return any(fnmatch.fnmatchcase(host, pattern) for pattern in self.hosts)

    def names_address(self, address: Address) -> bool:
        return any(address in network for network in map(_network, self.hosts) if network)

    def allows_address(self, address: Address) -> bool:
        """Returns whether an address that an allowed name stands for may be connected to."""
        return address.is_global or self.names_address(address)


@dataclass(slots=True)
class Egress:
    policy: Policy
    allowed: Counter[str] = field(default_factory=Counter)
    """Connections by host."""
    refused: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def served(self, listener: socket.socket) -> AsyncIterator[dict[str, str]]:
        """Answers on `listener`, which it owns. Yields the variables that programs inside need."""
        server = await asyncio.start_server(self._answer, sock=listener, limit=MAX_HEAD_BYTES)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield variables(url)
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._connect(head, reader, writer)
        except _Refused as error:
            body = f"{error}\n".encode()
            start = f"HTTP/1.1 {error.status}\r\nContent-Length: {len(body)}\r\n"
            writer.write(start.encode() + b"Connection: close\r\n\r\n" + body)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            with contextlib.suppress(OSError):
                writer.close()

    async def _connect(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        request = _Request.read(head)
        address = await self._resolved(request.host, request.port)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                out_reader, out_writer = await asyncio.open_connection(str(address), request.port)
        except (OSError, TimeoutError) as error:
            raise _Refused(
                "502 Bad Gateway", f"{request.host} cannot be reached: {error}"
            ) from None
        try:
            if request.is_tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                out_writer.write(request.head)
            await _copy_both(reader, writer, out_reader, out_writer)
        finally:
            out_writer.close()

    async def _resolved(self, host: str, port: int) -> Address:
        """Raises `_Refused` for what the policy does not allow."""
        if not self.policy.allows_name(host):
            raise self._refusal(host, "the task may not reach it")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        except OSError as error:
            raise _Refused("502 Bad Gateway", f"{host} has no address: {error}") from None
        for *_, where in found:
            address = ipaddress.ip_address(where[0])
            if self.policy.allows_address(address):
                _count(self.allowed, host)
                return address
        raise self._refusal(host, "its address is not public, and the task does not name it")

    def _refusal(self, host: str, why: str) -> "_Refused":
        _count(self.refused, host)
        return _Refused("403 Forbidden", f"{host}: {why}")


class _Refused(Exception):
    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Request:
    host: str
    port: int
    head: bytes
    """Head as the server behind gets it, for plain HTTP."""
    is_tunnel: bool

    @classmethod
    def read(cls, head: bytes) -> "_Request":
        """Raises `_Refused`."""
        first, _, rest = head.decode("latin-1").partition("\r\n")
        try:
            method, target, version = first.split(" ")
            is_tunnel = method == "CONNECT"
            parts = urlsplit(f"//{target}" if is_tunnel else target)
            port = parts.port or (443 if is_tunnel else 80)
            if parts.hostname is None or parts.scheme not in ("", "http"):
                raise ValueError
        except ValueError:
            raise _Refused("400 Bad Request", "not a request to a proxy") from None
        path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        lines = [line for line in rest.split("\r\n") if not _is_for_the_proxy(line)]
        told = "\r\n".join([f"{method} {path} {version}", "Connection: close", *lines])
        return cls(parts.hostname.lower().rstrip("."), port, told.encode("latin-1"), is_tunnel)


def variables(url: str) -> dict[str, str]:
    """Returns the variables by which programs find a proxy."""
    names = ("http_proxy", "https_proxy")
    proxies = {name: url for lower in names for name in (lower, lower.upper())}
    local = "localhost,127.0.0.1,::1"
    return {**proxies, "no_proxy": local, "NO_PROXY": local}


def _is_for_the_proxy(line: str) -> bool:
    return line.lower().startswith(("proxy-", "connection:"))


def _count(counter: Counter[str], host: str) -> None:
    counter[host if host in counter or len(counter) < MAX_HOSTS else OTHERS] += 1


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


async def _copy_both(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    out_reader: asyncio.StreamReader,
    out_writer: asyncio.StreamWriter,
) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_copy(reader, out_writer))
        group.create_task(_copy(out_reader, writer))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copies to the end of `source`, and passes that end on."""
    try:
        while data := await source.read(COPY_BYTES):
            target.write(data)
            await target.drain()
    except OSError:  # either side has left
        pass
    finally:
        with contextlib.suppress(OSError, RuntimeError):
            target.write_eof()
