"""Files of weights for engines that fetch them: each at a secret URL, for one update.

The server listens on the interface that leads to the engine, and only while a file is offered. It
serves nothing else, in particular nothing of the service's API.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from prorl_service.errors import BackendUnavailable
from prorl_service.inference import tensor_file
from prorl_service.inference.engines.http import Progress
from prorl_service.inference.sources import WeightFile
from prorl_service.net.fetching import DIFFERENCE
from prorl_service.utils.tasks import TaskOwner

T = TypeVar("T")

MAX_HEAD_BYTES = 4096
PART_BYTES = 16 * 2**20
"""Size of the parts after each of which progress is reported."""
HEAD_TIMEOUT_S = 10.0
FOUND = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n"
)
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(slots=True, eq=False)
class OfferedFile:
    """One file, for one engine."""

    files: dict[str, Path]
    """Whole file and, under the route that ends with `DIFFERENCE`, a difference, keyed by route."""
    size: int
    """Size of the whole file in bytes."""
    on_progress: Progress
    url: str = ""
    transfers: TaskOwner = field(default_factory=TaskOwner)
    """Owner of the requests in progress."""
    served: int = 0
    """Number of completed transfers."""
    failure: OSError | None = None
    """Reason why the last transfer broke off."""


@asynccontextmanager
async def offered(
    path: Path, engine_url: str, on_progress: Progress, difference: Path | None = None
) -> AsyncIterator[OfferedFile]:
    """Offers `path`, and its `difference` where that exists, until the context is left. Raises
    `OSError`."""
    route = f"/{secrets.token_urlsafe(32)}"
    files = {route: path}
    if difference is not None and await asyncio.to_thread(difference.exists):
        files[route + DIFFERENCE] = difference
    offer = OfferedFile(files, (await asyncio.to_thread(path.stat)).st_size, on_progress)

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        offer.transfers.run_once(_answer(reader, writer, offer), name=f"transfer of {path}")

    own_host = await _address_towards(engine_url)
    server = await asyncio.start_server(connected, own_host, 0, limit=MAX_HEAD_BYTES)
    try:
        own_port = server.sockets[0].getsockname()[1]
        shown = f"[{own_host}]" if ":" in own_host else own_host
        offer.url = f"http://{shown}:{own_port}{route}"
        yield offer
    finally:
        server.close()
        await offer.transfers.close()


async def handed_out(
    file: WeightFile,
    engine_url: str,
    on_progress: Progress,
    take: Callable[[dict[str, Any]], Awaitable[T]],
) -> T:
    """Offers `file` while `take` has the engine fetch it, and returns what that returns. `take`
    gets what the engine needs to fetch the file, or to open it. Raises `BackendError`."""
    difference = file.difference if file.base else None
    try:
        async with offered(file.path, engine_url, on_progress, difference) as offer:
            info = {"path": str(file.path), "size": offer.size, "url": offer.url, "base": file.base}
            taken = await take(info)
            await offer.transfers.drain()
            if offer.failure is not None:
                raise BackendUnavailable(f"{engine_url} took no weights: {offer.failure}")
            return taken
    except OSError as error:
        raise tensor_file.unreadable(file.path, error) from error


async def _address_towards(engine_url: str) -> str:
    """Returns this host's address on the interface that leads to the engine. Sends nothing."""
    url = urlsplit(engine_url)
    port = url.port or (443 if url.scheme == "https" else 80)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(url.hostname, port, type=socket.SOCK_DGRAM)
    family, kind, _, _, address = found[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, offer: OfferedFile
) -> None:
    try:
        asked_for = (await _asked_for(reader)).encode()
        for route, path in offer.files.items():
            if secrets.compare_digest(asked_for, route.encode()):
                await _send(path, writer, offer.on_progress)
                writer.write_eof()
                await reader.read(1)  # nothing comes until the engine, which applies it, hangs up
                offer.served, offer.failure = offer.served + 1, None
                return
        writer.write(NOT_FOUND)
    except OSError as error:
        offer.failure = error
    finally:
        writer.close()


async def _asked_for(reader: asyncio.StreamReader) -> str:
    """Returns the route of a GET; "" for anything else."""
    try:
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return ""
    method, _, rest = head.decode("latin-1").partition(" ")
    return rest.partition(" ")[0] if method == "GET" else ""


async def _send(path: Path, writer: asyncio.StreamWriter, on_progress: Progress) -> None:
    with path.open("rb") as file:  # uvloop has no sendfile
        writer.write(FOUND % os.fstat(file.fileno()).st_size)
        while part := await asyncio.to_thread(file.read, PART_BYTES):
            writer.write(part)
            await writer.drain()
            on_progress()
