"""The proxy of a sandbox.

A sandbox has no network. The proxy is on a port of its loopback whose socket the service holds
(`Sandbox.listen`), so that it needs no privileges; it connects to the hosts that a policy allows,
by CONNECT or for plain HTTP, and counts them. Addresses that are not public are reached only if the
policy names them: a sandbox must not find the services of the cluster. It reads no content.

Whatever a sandbox does takes a bounded part of the service: connections, descriptors, threads and
lines of the log. All of it ends with `Egress.served`.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from prorl_service.sandbox.egress import connecting, streams
from prorl_service.sandbox.egress.addresses import Address
from prorl_service.sandbox.egress.policy import EgressPolicy
from prorl_service.sandbox.egress.requests import ProxyRequest, RefusedHead
from prorl_service.sandbox.egress.streams import ByteStream
from prorl_service.utils.tasks import TaskOwner

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 << 10
MAX_HOSTS = 1000
"""Hosts that are counted by name; more are counted together."""
OTHERS = "others"
MAX_LOOKUPS = 4
"""Look-ups of one sandbox at a time."""
PAUSE_S = 1.0
"""Pause when the service has no descriptor for a further connection."""
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Limits of one sandbox."""

    connections: int = 64
    """Connections at a time; further ones wait to be accepted."""
    head_s: float = 30.0
    connect_s: float = 30.0
    idle_s: float = 300.0
    """Seconds without a byte in either direction, after which a connection ends."""
    linger_s: float = 2.0
    """Seconds in which a client that was refused may read why."""


@dataclass(slots=True)
class Egress:
    policy: EgressPolicy
    limits: ProxyLimits = ProxyLimits()
    allowed: Counter[str] = field(default_factory=Counter)
    """Connections by host."""
    refused: Counter[str] = field(default_factory=Counter)
    _lookups: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_LOOKUPS))

    @asynccontextmanager
    async def served(self, listener: socket.socket) -> AsyncIterator[dict[str, str]]:
        """Answers on `listener`, which it owns. Yields the variables that programs inside need."""
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        tasks = TaskOwner()
        tasks.start(self._accept(listener, tasks), name="egress")
        try:
            yield variables(url)
        finally:
            await tasks.close()
            listener.close()

    async def _accept(self, listener: socket.socket, tasks: TaskOwner) -> None:
        room = asyncio.Semaphore(self.limits.connections)
        while True:
            await room.acquire()
            client = await _accepted(listener)
            task = tasks.run_once(self._answer(client), name="egress connection", of_one=True)
            task.add_done_callback(partial(_ended, client, room))

    async def _answer(self, client: ByteStream) -> None:
        try:
            try:
                await self._serve(client)
            except RefusedHead as refusal:
                await self._refuse(client, refusal)
        except Exception as error:  # the boundary: what a sandbox sends must not fill the log
            log.debug("a connection of a sandbox ended: %.300r", error)

    async def _serve(self, client: ByteStream) -> None:
        request = ProxyRequest.read(await self._head(client))
        server = await self._connected(request)
        try:
            async with streams.until_idle(self.limits.idle_s) as seen:
                if request.is_tunnel:
                    client.writer.write(_ESTABLISHED)
                    await streams.tunnel(client, server, seen)
                else:
                    server.writer.write(request.head)
                    await streams.exchange(client, server, request.length, seen)
                await client.close()
        finally:
            server.abort()

    async def _head(self, client: ByteStream) -> bytes:
        try:
            async with asyncio.timeout(self.limits.head_s):
                return await client.reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            raise RefusedHead("408 Request Timeout", "the request took too long") from None
        except asyncio.LimitOverrunError:
            why = f"the head of the request is longer than {MAX_HEAD_BYTES} bytes"
            raise RefusedHead("431 Request Header Fields Too Large", why) from None
        except asyncio.IncompleteReadError:
            raise RefusedHead("400 Bad Request", "the request ends within its head") from None

    async def _connected(self, request: ProxyRequest) -> ByteStream:
        """Raises `RefusedHead`."""
        host = request.host
        if not self.policy.allows_name(host):
            raise self._refusal(host, "the task may not reach it")
        if request.port not in self.policy.rules.ports:
            raise self._refusal(host, f"tasks may not reach port {request.port}")
        try:
            async with asyncio.timeout(self.limits.connect_s):
                addresses = await self._resolved(host)
                return await connecting.connected(addresses, request.port)
        except TimeoutError:
            raise RefusedHead("504 Gateway Timeout", f"{host} does not answer") from None
        except OSError as error:
            raise RefusedHead("502 Bad Gateway", f"{host} cannot be reached: {error}") from None

    async def _resolved(self, host: str) -> list[Address]:
        """Returns the addresses that the policy allows. Raises `RefusedHead` if there are none."""
        async with self._lookups:
            found = await connecting.addresses_of(host)
        allowed = [address for address in found if self.policy.allows_address(address)]
        if not allowed:
            why = "its address is not public, or denied, and the task does not name it"
            raise self._refusal(host, why)
        _count(self.allowed, host)
        return allowed

    def _refusal(self, host: str, why: str) -> RefusedHead:
        _count(self.refused, host)
        return RefusedHead("403 Forbidden", f"{host}: {why}")

    async def _refuse(self, client: ByteStream, refusal: RefusedHead) -> None:
        body = f"{refusal}\n".encode()
        head = f"HTTP/1.1 {refusal.status}\r\nContent-Length: {len(body)}\r\nConnection: close"
        client.writer.write(head.encode() + b"\r\n\r\n" + body)
        client.writer.write_eof()
        async with asyncio.timeout(self.limits.linger_s):
            # Closed with unread bytes, the connection is reset, and the client may lose the answer.
            while await client.reader.read(streams.COPY_BYTES):
                pass


def variables(url: str) -> dict[str, str]:
    """Returns the variables by which programs find a proxy."""
    names = ("http_proxy", "https_proxy")
    proxies = {name: url for lower in names for name in (lower, lower.upper())}
    local = "localhost,127.0.0.1,::1"
    return {**proxies, "no_proxy": local, "NO_PROXY": local}


async def _accepted(listener: socket.socket) -> ByteStream:
    while True:
        try:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            return await ByteStream.of(connection, MAX_HEAD_BYTES)
        except OSError as error:
            log.debug("a connection of a sandbox cannot be accepted: %s", error)
            await asyncio.sleep(PAUSE_S)


def _ended(client: ByteStream, room: asyncio.Semaphore, _: asyncio.Task[None]) -> None:
    client.abort()
    room.release()


def _count(counter: Counter[str], host: str) -> None:
    counter[host if host in counter or len(counter) < MAX_HOSTS else OTHERS] += 1
