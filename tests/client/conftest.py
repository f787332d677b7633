"""A scripted service, and calls of it by either client."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from prorl_service.client import AsyncRolloutClient, RolloutClient
from tests.client.scripted import ScriptedService, read_body


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    script = ScriptedService()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            script.accept = self.headers["Accept"]
            script.authorization = self.headers["Authorization"]
            script.requests.append((self.command, self.path, read_body(self)))
            script.replies.popleft()(self)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, ThreadPoolExecutor(1) as pool:
        script.url = f"http://127.0.0.1:{server.server_port}"
        pool.submit(server.serve_forever, 0.01)
        yield script
        server.shutdown()
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
