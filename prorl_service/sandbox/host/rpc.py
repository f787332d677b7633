"""The service's end of the connection to an execution server: requests out, answers in, any order.

Data from a sandbox is not trusted: anything except a well-formed answer ends the connection. A
request whose caller has left is cancelled at the server.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, cast

from prorl_service.errors import SandboxError
from prorl_service.sandbox.guest.execd.protocol import FrameDecoder, ProtocolError, encode

Frame = tuple[dict[str, Any], bytes]
OnPart = Callable[[bytes], None]


class RefusedInside(Exception):
    """The server refused a request; `errno` is set if its operating system said why."""

    def __init__(self, message: str, errno: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.errno = errno


class Channel(asyncio.Protocol):
    """One connection. When it ends, every call in flight and every later one fails immediately."""

    def __init__(self, *, max_payload_bytes: int, why_lost: Callable[[], str]) -> None:
        self._decoder = FrameDecoder(max_payload_bytes)
        self._why_lost = why_lost
        self._broken = ""
        self._ids = itertools.count(1)
        self._pending: dict[int, tuple[asyncio.Future[Frame], OnPart | None]] = {}
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def request(
        self,
        operation: str,
        *,
        timeout_s: float,
        margin_s: float = 0.0,
        payload: bytes = b"",
        on_part: OnPart | None = None,
        stream: bool = False,
        **arguments: Any,
    ) -> Frame:
        """Returns the result and payload of `operation`, which has `timeout_s` to finish by itself.

        `on_part` gets what comes before the result; what it raises is raised here. `stream` asks
        for parts that are a tool's output. Raises `RefusedInside`, and `SandboxError` when the
        server is gone or silent beyond the margin.
        """
        if self._lost.done():
            raise SandboxError(self._lost.result())
        request_id = next(self._ids)
        header = {"id": request_id, "op": operation, "timeout_s": timeout_s, "arguments": arguments}
        if stream:
            header["stream"] = True
        self._transport.write(_encode(header, payload))
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = answer, on_part
        answered = False
        try:
            async with asyncio.timeout(timeout_s + margin_s):
                header, answer_payload = await answer
            answered = True
        except TimeoutError:
            raise SandboxError(
                f"the execution server did not answer {operation!r} in {timeout_s + margin_s:g} s"
            ) from None
        finally:
            del self._pending[request_id]
            if not answered and not self._transport.is_closing():
                self._transport.write(encode({"id": request_id, "op": "cancel"}))
        return _result(header), answer_payload

    def tell(self, operation: str, *, payload: bytes = b"", **arguments: Any) -> None:
        """Requests `operation` and immediately cancels it, since its answer is not awaited."""
        request_id = next(self._ids)
        header = {"id": request_id, "op": operation, "timeout_s": 0.0, "arguments": arguments}
        if not self._transport.is_closing():
            self._transport.write(_encode(header, payload))
            self._transport.write(encode({"id": request_id, "op": "cancel"}))

    async def close(self) -> None:
        self._transport.abort()
        await self._lost

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for header, payload in self._decoder.feed(data):
                if header["id"] in self._pending:
                    self._take(header, payload, *self._pending[header["id"]])
        except (ProtocolError, KeyError, TypeError) as error:
            self._broken = f"the sandbox broke its protocol: {error!r}"
            self._transport.abort()

    def _take(
        self,
        header: dict[str, Any],
        payload: bytes,
        answer: asyncio.Future[Frame],
        on_part: OnPart | None,
    ) -> None:
        if answer.done():
            return
        if "part" not in header:
            answer.set_result((header, payload))
        elif on_part is not None:
            try:
                on_part(payload)
            except Exception as error:  # the boundary: it is the caller's code
                answer.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._broken or self._why_lost()
        self._lost.set_result(reason)
        for answer, _ in self._pending.values():
            if not answer.done():
                answer.set_exception(SandboxError(reason))


def _encode(header: dict[str, Any], payload: bytes) -> bytes:
    try:
        return encode(header, payload)
    except ProtocolError as error:
        raise SandboxError(str(error), retryable=False) from error


def _result(header: dict[str, Any]) -> dict[str, Any]:
    match header:
        case {"result": dict(result)}:
            return result
        case {"error": {"message": str(message), "errno": int() | None as errno}}:
            raise RefusedInside(message, errno)
    raise SandboxError("the sandbox broke its protocol: an answer without result or error")
