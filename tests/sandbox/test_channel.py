"""The service's end of the connection, against peers that are not an honest execution server."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from prorl_service.errors import SandboxError
from prorl_service.sandbox.guest.execd.protocol import FrameDecoder, encode
from prorl_service.sandbox.host.rpc import Channel, RefusedInside


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(max_payload_bytes=100, why_lost=lambda: "the peer went away")
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
    with theirs:
        yield channel, theirs
        await channel.close()


async def test_answers_find_their_requests_in_any_order() -> None:
    async with connected() as (channel, peer):
        calls = [asyncio.create_task(channel.request("ping", timeout_s=5)) for _ in range(3)]
        await asyncio.sleep(0)
        for request_id in (3, 99, 1, 2, 1):
            peer.send(encode({"id": request_id, "result": {"of": request_id}}, b"payload"))
        assert await asyncio.gather(*calls) == [
            ({"of": request_id}, b"payload") for request_id in (1, 2, 3)
        ]


@pytest.mark.parametrize(
    "lie",
    [
        b"\xff" * 64,
        b"\0\0\0\2\0\0\0\0{[",
        b"\0\0\0\2\0\0\0\0[]",
        encode({"id": 1, "result": {}}, b"x" * 101),
        encode({"result": {}}),
        encode({"id": [], "result": {}}),
        encode({"id": 1}),
        encode({"id": 1, "result": []}),
        encode({"id": 1, "error": "text"}),
        encode({"id": 1, "error": {"message": "text", "errno": "text"}}),
    ],
)
async def test_a_malformed_answer_is_a_sandbox_error(lie: bytes) -> None:
    async with connected() as (channel, peer):
        peer.send(lie)
        with pytest.raises(SandboxError, match="broke its protocol"):
            await channel.request("ping", timeout_s=5)


async def test_a_refused_request_raises_the_reason() -> None:
    async with connected() as (channel, peer):
        peer.send(encode({"id": 1, "error": {"message": "no such file", "errno": 2}}))
        with pytest.raises(RefusedInside, match="no such file"):
            await channel.request("download", timeout_s=5)


async def test_the_end_of_the_peer_fails_pending_and_later_requests() -> None:
    async with connected() as (channel, peer):
        call = asyncio.create_task(channel.request("ping", timeout_s=1000))
        await asyncio.sleep(0)
        peer.close()
        for request in (call, channel.request("ping", timeout_s=1000)):
            with pytest.raises(SandboxError, match="the peer went away"):
                await request


async def test_a_silent_peer_fails_the_request_after_the_margin() -> None:
    async with connected() as (channel, peer):
        with pytest.raises(SandboxError, match="did not answer 'ping'"):
            await channel.request("ping", timeout_s=0.01, margin_s=0.01)
        peer.send(encode({"id": 1, "result": {}}) + encode({"id": 2, "result": {"late": False}}))
        assert await channel.request("ping", timeout_s=5) == ({"late": False}, b"")


async def test_parts_come_before_the_answer_and_only_if_wanted() -> None:
    async with connected() as (channel, peer):
        parts: list[bytes] = []
        wanted = asyncio.create_task(channel.request("a", timeout_s=5, on_part=parts.append))
        unwanted = asyncio.create_task(channel.request("b", timeout_s=5))
        await asyncio.sleep(0)
        for request_id in (1, 2):
            peer.send(encode({"id": request_id, "part": True}, b"one"))
            peer.send(encode({"id": request_id, "part": True}, b"two"))
            peer.send(encode({"id": request_id, "result": {}}, b"end"))
            peer.send(encode({"id": request_id, "part": True}, b"late"))
        assert await wanted == await unwanted == ({}, b"end")
        assert parts == [b"one", b"two"]


async def test_the_server_gets_a_cancel_when_the_caller_stops_waiting() -> None:
    async with connected() as (channel, peer):
        answered = asyncio.create_task(channel.request("a", timeout_s=5))
        cancelled = asyncio.create_task(channel.request("b", timeout_s=5))
        await asyncio.sleep(0)
        peer.send(encode({"id": 1, "result": {}}))
        await answered
        cancelled.cancel()
        with pytest.raises(SandboxError):
            await channel.request("c", timeout_s=0.01)
        frames = [header for header, _ in FrameDecoder(0).feed(peer.recv(1 << 16))]
        assert [(frame["op"], frame["id"]) for frame in frames] == [
            ("a", 1),
            ("b", 2),
            ("c", 3),
            ("cancel", 2),
            ("cancel", 3),
        ]
