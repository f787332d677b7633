"""Requests that the gateway refuses, in the form of their dialect: methods, encodings, sizes."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterator

import httpx
import orjson
import pytest

from prorl_service.gateway.limits import LIMITS
from prorl_service.tokens.chat import ChatFormat
from tests.gateway.rollouts import Rollout, rollout

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
BODY = orjson.dumps(
    {
        "model": "policy",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi."}],
        "input": "Hi.",
    }
)


@pytest.fixture
async def run(chat: ChatFormat) -> AsyncIterator[Rollout]:
    async with rollout(chat, ["one"] * 8) as run:
        yield run


@pytest.fixture
async def http(run: Rollout) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=run.url, timeout=60) as http:
        yield http


def spaces(size: int) -> Iterator[bytes]:
    for _ in range(size >> 20):
        yield b" " * (1 << 20)


async def chunked(size: int) -> AsyncIterator[bytes]:
    for piece in spaces(size):
        yield piece


def message_of(answer: httpx.Response) -> str:
    """Returns the message, where clients of both OpenAI and Anthropic look for it."""
    error = answer.json()["error"]
    assert error["type"]
    return str(error["message"])


@pytest.mark.parametrize("path", [*PATHS, "/v1/messages/count_tokens"])
async def test_bodies_that_are_too_large(path: str, http: httpx.AsyncClient) -> None:
    size = LIMITS.body_bytes + (1 << 20)
    packed = gzip.compress(b"".join(spaces(size)))
    for answer in (
        await http.post(path, content=chunked(size)),
        await http.post(path, content=packed, headers={"content-encoding": "gzip"}),
    ):
        assert answer.status_code == 413
        assert message_of(answer) == f"the body is larger than {LIMITS.body_bytes} bytes"
        assert ("type" in answer.json()) == ("messages" in path)


async def test_a_body_that_announces_its_size_is_not_read(run: Rollout) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(run.url.rpartition(":")[2]))
    head = f"POST {PATHS[0]} HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 40}\r\n\r\n"
    writer.write(head.encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_the_largest_body_is_read(http: httpx.AsyncClient) -> None:
    padded = BODY.rjust(LIMITS.body_bytes)
    assert (await http.post(PATHS[0], content=padded)).status_code == 200


async def test_bodies_that_are_too_large_together(run: Rollout, http: httpx.AsyncClient) -> None:
    waiting = asyncio.Event()
    held = [asyncio.Event() for _ in range(3)]

    async def slow(sent: asyncio.Event) -> AsyncIterator[bytes]:
        async for piece in chunked(LIMITS.bodies_bytes // 4):
            yield piece
        sent.set()
        await waiting.wait()

    calls = [asyncio.create_task(http.post(PATHS[0], content=slow(one))) for one in held]
    for one in held:
        await one.wait()
    refused = await http.post(PATHS[0], content=chunked(LIMITS.body_bytes))
    assert refused.status_code == 429
    assert "all calls in flight" in message_of(refused)
    waiting.set()
    assert [(await call).status_code for call in calls] == [400] * 3  # not JSON
    assert (await http.post(PATHS[0], content=BODY.rjust(LIMITS.body_bytes))).status_code == 200


@pytest.mark.parametrize("path", PATHS)
async def test_encodings(path: str, http: httpx.AsyncClient) -> None:
    packed = gzip.compress(BODY)
    for name in ("gzip", "GZIP", "x-gzip"):
        answer = await http.post(path, content=packed, headers={"content-encoding": name})
        assert answer.status_code == 200
    whole = await http.post(path, content=BODY, headers={"content-encoding": "Identity"})
    assert whole.status_code == 200
    for content in (packed[:-9], packed[:-1], packed[:20], b"", b"no gzip"):
        answer = await http.post(path, content=content, headers={"content-encoding": "gzip"})
        assert answer.status_code == 400
        assert message_of(answer).startswith("the body is not gzip")
    answer = await http.post(path, content=packed, headers={"content-encoding": "br"})
    assert answer.status_code == 415
    assert "'br'" in message_of(answer)


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/", *PATHS, "/v1/responses/resp_1"])
async def test_methods_that_there_are_not(method: str, path: str, http: httpx.AsyncClient) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, POST"
    assert method in message_of(answer)


async def test_heads(http: httpx.AsyncClient) -> None:
    for path, status in (("/", 200), ("/v1/models", 200), ("/v1/models/m", 200), ("/v1/x", 404)):
        answer = await http.head(path)
        assert (answer.status_code, answer.content) == (status, b"")
        assert answer.headers["content-type"] == "application/json"
