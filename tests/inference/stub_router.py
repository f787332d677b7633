"""A router in front of several engines: each request goes to one of them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from typing import Self

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from prorl_service.testing.loopback import Handler, Loopback


class StubRouter(Loopback):
    """`async with StubRouter(urls) as router`. `is_listing`: it lists its engines as vllm-router
    and sglang-router do; otherwise only its answers show that it is a router. `order`: engines of
    its requests; by default they take turns."""

    def __init__(
        self, engines: Sequence[str], *, is_listing: bool, order: Iterator[str] | None = None
    ) -> None:
        self._engines = list(engines)
        self._next = order or cycle(self._engines)
        self._is_listing = is_listing
        self._stack = AsyncExitStack()

    def routes(self) -> Mapping[str, Handler]:
        return {"/workers": self._workers} if self._is_listing else {}

    async def __aenter__(self) -> Self:
        client = httpx.AsyncClient(trust_env=False, timeout=60)
        self._http = await self._stack.enter_async_context(client)
        return await super().__aenter__()

    async def __aexit__(self, *exc_info: object) -> None:
        await super().__aexit__(*exc_info)
        await self._stack.aclose()

    async def respond(self, request: Request) -> Response:
        if request.url.path in self.routes():
            return await super().respond(request)
        url = f"{next(self._next)}{request.url.path}?{request.url.query}"
        content = await request.body()
        answer = await self._http.request(request.method, url, content=content)
        return Response(answer.content, answer.status_code, media_type="application/json")

    async def _workers(self, _: Request) -> Response:
        return JSONResponse({"workers": [{"url": url} for url in self._engines]})
