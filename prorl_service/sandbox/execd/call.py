"""One request to the execution server, and the ways to answer it."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Answer = Callable[[dict[str, Any], bytes], None]


class Call:
    """Must be answered once. `deadline` is of `time.monotonic`, counted from arrival."""

    def __init__(self, header: dict[str, Any], payload: bytes, answer: Answer) -> None:
        self._id = header["id"]
        self._answer = answer
        self.operation: str = header["op"]
        self.arguments: dict[str, Any] = header.get("arguments", {})
        self.timeout_s: float = header["timeout_s"]
        self.deadline = time.monotonic() + self.timeout_s
        self.payload = payload

    def reply(self, payload: bytes = b"", **result: Any) -> None:
        self._answer({"id": self._id, "result": result}, payload)

    def reply_tool(
        self, output: str, *, is_error: bool, data: dict[str, Any] | None = None
    ) -> None:
        """The answer of a tool: text for the model, and what the tool says besides."""
        self.reply(output.encode("utf-8", "replace"), is_error=is_error, data=data or {})

    def fail(self, message: str, errno: int | None = None) -> None:
        """The operation could not be done; `errno` where the operating system said so."""
        self._answer({"id": self._id, "error": {"message": message, "errno": errno}}, b"")
