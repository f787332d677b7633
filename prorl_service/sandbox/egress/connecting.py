"""Names to addresses, and addresses to a connection, all of them tried (RFC 8305)."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

from prorl_service.sandbox.egress.addresses import Address, read_address
from prorl_service.sandbox.egress.streams import ByteStream
from prorl_service.utils.tasks import cancel_all

STAGGER_S = 0.25
MAX_ADDRESSES = 8
"""Addresses of a name that are tried."""
# Look-ups of names whose servers never answer must not take the threads of the whole service.
_LOOKUPS = ThreadPoolExecutor(16, "egress-lookup")


async def addresses_of(host: str) -> list[Address]:
    """Returns the addresses of a host. Raises `OSError`."""
    found = await asyncio.get_running_loop().run_in_executor(_LOOKUPS, _looked_up, host)
    return list(dict.fromkeys(one for one in map(read_address, found) if one is not None))


def _looked_up(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(where[0]) for *_, where in found]


async def connected(addresses: Sequence[Address], port: int) -> ByteStream:
    """Connects to the first address that answers; each gets a head start on the next one. Raises
    the last `OSError` if none does."""
    waiting = _by_turns(addresses[:MAX_ADDRESSES])
    tries: set[asyncio.Task[ByteStream]] = set()
    problem = OSError("it has no address")
    try:
        while True:
            address = next(waiting, None)
            if address is not None:
                tries.add(asyncio.create_task(_connected(address, port)))
            if not tries:
                raise problem
            done, _ = await asyncio.wait(
                tries,
                timeout=None if address is None else STAGGER_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for one in done:
                tries.discard(one)
                try:
                    return await one
                except OSError as error:
                    problem = error
    finally:
        await _given_up(tries)


async def _connected(address: Address, port: int) -> ByteStream:
    return ByteStream(*await asyncio.open_connection(str(address), port))


async def _given_up(tries: set[asyncio.Task[ByteStream]]) -> None:
    await cancel_all(tries)
    for one in tries:
        if not one.cancelled() and one.exception() is None:
            one.result().abort()


def _by_turns(addresses: Sequence[Address]) -> Iterator[Address]:
    """Yields addresses of both families by turns, those of the first one's family first."""
    first = [one for one in addresses if one.version == addresses[0].version]
    others = [one for one in addresses if one.version != addresses[0].version]
    for pair in zip_longest(first, others):
        yield from (one for one in pair if one is not None)
