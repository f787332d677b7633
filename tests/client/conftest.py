"""A scripted service, and calls of it by either client."""

import asyncio
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from prorl_service.client import AsyncRolloutClient, RolloutClient
from tests.client.scripted import ScriptedService, answering, read_body


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    script = ScriptedService()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        script.accept = handler.headers["Accept"]
        script.authorization = handler.headers["Authorization"]
        script.requests.append((handler.command, handler.path, read_body(handler)))
        script.replies.popleft()(handler)

    with answering(answer) as script.url:
        yield script
    assert not script.replies, "the client made fewer calls than expected"


@pytest.fixture(params=["sync", "async"])
def invoke(request: pytest.FixtureRequest, service: ScriptedService) -> Callable[..., Any]:
    """`invoke("wait", ids, 5)` calls the method on a fresh client; streams become lists."""

    def sync(method: str, *args: Any, **options: Any) -> Any:
        with RolloutClient(service.url, **options) as client:
            answer = getattr(client, method)(*args)
            return list(answer) if method == "stream" else answer

    async def asynchronous(method: str, *args: Any, **options: Any) -> Any:
        async with AsyncRolloutClient(service.url, **options) as client:
            answer = getattr(client, method)(*args)
            return [one async for one in answer] if method == "stream" else await answer

    def run(method: str, *args: Any, **options: Any) -> Any:
        return asyncio.run(asynchronous(method, *args, **options))

    return sync if request.param == "sync" else run
