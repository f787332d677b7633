"""Streamable HTTP transport for MCP servers, with a limit on the size of one answer.

The client library reads an answer whole, however long it is. Needs the extra `mcp`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx2
from mcp.client.streamable_http import streamable_http_client

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

CONNECT_TIMEOUT_S = 30.0


@asynccontextmanager
async def http_transport(
    url: str, key: str | None, *, max_answer_bytes: int
) -> "AsyncIterator[TransportStreams]":
    async def limit(response: httpx2.Response) -> None:
        if response.request.method == "POST":  # the stream of the server's own messages has no end
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Limited(response.stream, max_answer_bytes)

    client = httpx2.AsyncClient(
        headers={} if key is None else {"Authorization": f"Bearer {key}"},
        # Each call has a budget of its own.
        timeout=httpx2.Timeout(CONNECT_TIMEOUT_S, read=None),
        event_hooks={"response": [limit]},
    )
    async with (
        client,
        streamable_http_client(
            url, http_client=client, max_sse_event_size=max_answer_bytes
        ) as streams,
    ):
        yield streams


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._max_bytes
        async for chunk in self._stream:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError(f"an answer has more than {self._max_bytes} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
