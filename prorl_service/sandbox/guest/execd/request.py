"""One request to the execution server, and the ways to answer it."""

import time
from collections.abc import Callable
from typing import Any

from .loop import Loop
from .stream import Stream

Answer = Callable[[dict[str, Any], bytes], None]


class Request:
    """Must be answered once. `deadline` is of `time.monotonic`, counted from arrival."""

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
        """The answer of a tool: text for the model, and what the tool says besides. `lent`: the
        shell is the service's until its next request for it."""
        result = {"is_error": is_error, "data": data or {}}
        if lent:
            result["lent"] = True
        self.reply(output.encode("utf-8", "replace"), **result)

    def fail(self, message: str, errno: int | None = None) -> None:
        """The operation could not be done; `errno` where the operating system said so."""
        self._end({"id": self._id, "error": {"message": message, "errno": errno}}, b"")

    def stream(self, data: bytes) -> None:
        """Show output of a tool that is still running to whoever asked for it; else nothing."""
        if self._stream is not None:
            self._stream.append(data)

    def send_part(self, data: bytes) -> None:
        """A piece of a payload that is not to be held as a whole: up to `PART_BYTES`."""
        self._answer({"id": self._id, "part": True}, data)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call it once if nobody waits for the answer any more. It must be answered all the same.

        A call without one goes on to its end.
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
