"""One request to the execution server, and the ways to answer it."""

import time
from collections.abc import Callable
from typing import Any

from .loop import Loop
from .output import HeadTail

INTERVAL_S = 0.1
FIRST_AFTER_S = 0.01
"""Seconds after the first byte whose output leaves together with it."""
PIECE_BYTES = 16 * 1024

Answer = Callable[[dict[str, Any], bytes], None]


class Request:
    """A request, which must be answered once. `deadline` is on `time.monotonic`, from arrival."""

    def __init__(self, header: dict[str, Any], payload: bytes, answer: Answer, loop: Loop) -> None:
        self._id = header["id"]
        self._answer = answer
        self._stream: Stream | None = None
        self._on_cancel: Callable[[], None] | None = None
        self.loop = loop
        self.operation: str = header["op"]
        self.arguments: dict[str, Any] = header.get("arguments", {})
        self.timeout_s: float = header["timeout_s"]
        self.deadline = time.monotonic() + self.timeout_s
        self.payload = payload
        if header.get("stream"):
            self._stream = Stream(loop, self.send_part)

    def reply(self, payload: bytes = b"", **result: Any) -> None:
        self._end({"id": self._id, "result": result}, payload)

    def reply_tool(
        self, output: str, *, is_error: bool, data: dict[str, Any] | None = None, lent: bool = False
    ) -> None:
        """Answers for a tool: with text for the model, and the tool's data. `lent` means that the
        shell is the service's until its next request for it."""
        result = {"is_error": is_error, "data": data or {}}
        if lent:
            result["lent"] = True
        self.reply(output.encode("utf-8", "replace"), **result)

    def fail(self, message: str, errno: int | None = None) -> None:
        """Answers that the operation failed; `errno` is set if the operating system said why."""
        self._end({"id": self._id, "error": {"message": message, "errno": errno}}, b"")

    def stream(self, data: bytes) -> None:
        """Sends output of a tool that is still running, if the request asked for it."""
        if self._stream is not None:
            self._stream.append(data)

    def send_part(self, data: bytes) -> None:
        """Sends a piece, up to `PART_BYTES`, of a payload that is never held as a whole."""
        self._answer({"id": self._id, "part": True}, data)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Sets what is called once if the caller has left. The request must still be answered.

        A call without a callback continues to its end.
        """
        self._on_cancel = callback

    def cancel(self) -> None:
        callback, self._on_cancel = self._on_cancel, None
        if callback is not None:
            callback()

    def _end(self, header: dict[str, Any], payload: bytes) -> None:
        self._on_cancel = None
        if self._stream is not None:
            self._stream.flush()
        self._answer(header, payload)


class Stream:
    """Output of a call that is still running, for viewers: coalesced and bounded. A piece leaves at
    most every `INTERVAL_S`, with the first and last bytes of what came since the last one. The
    result of the call does not depend on it."""

    def __init__(self, loop: Loop, send: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._send = send
        self._sent_at = 0.0
        self._piece: HeadTail | None = None

    def append(self, data: bytes) -> None:
        if self._piece is None:
            self._piece = HeadTail(PIECE_BYTES)
            now = time.monotonic()
            due = max(now + FIRST_AFTER_S, self._sent_at + INTERVAL_S)
            self._loop.set_timer(self, due, self.flush)
        self._piece.append(data)

    def flush(self) -> None:
        if self._piece is not None:
            self._loop.clear_timer(self)
            piece, self._piece = self._piece, None
            self._sent_at = time.monotonic()
            self._send(piece.data())
