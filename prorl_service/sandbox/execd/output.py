"""Bounded memory for unbounded output."""

from __future__ import annotations


class HeadTail:
    """Keeps the first and the last half of `limit_bytes`, and counts what fell out in between."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_limit = limit_bytes // 2
        self._tail_limit = limit_bytes - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped_bytes = 0

    def append(self, data: bytes) -> None:
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Twice the limit before cutting, so that a byte is moved once on average.
        if len(self._tail) > 2 * self._tail_limit:
            self._cut()

    def _cut(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
            self.dropped_bytes += excess

    def text(self) -> str:
        """What was kept, as UTF-8 with replacement, line ends as `\\n`, one line for the gap."""
        self._cut()
        if not self.dropped_bytes:
            return _decode(self._head + self._tail)
        head = _decode(self._head)
        line_end = "" if head.endswith("\n") or not head else "\n"
        gap = f"{line_end}[... {self.dropped_bytes} bytes omitted ...]\n"
        return head + gap + _decode(self._tail)


def _decode(data: bytearray) -> str:
    return data.decode("utf-8", "replace").replace("\r\n", "\n")
