"""Bounded memory for unbounded output, and the notes to the model at its end. Both ends of the
connection use them.
"""

from collections.abc import Sequence


class HeadTail:
    """Keeps the first and the last half of `limit_bytes`, and counts the bytes dropped between."""

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

    def data(self) -> bytes:
        """Returns what was kept, with one line for the gap."""
        self._cut()
        if not self.dropped_bytes:
            return bytes(self._head + self._tail)
        line_end = b"\n" if self._head and not self._head.endswith(b"\n") else b""
        gap = b"%s[... %d bytes omitted ...]\n" % (line_end, self.dropped_bytes)
        return bytes(self._head + gap + self._tail)

    def text(self) -> str:
        """Returns `data` decoded as UTF-8 with replacement, with line ends as `\\n`."""
        return self.data().decode("utf-8", "replace").replace("\r\n", "\n")


def with_notes(text: str, notes: Sequence[str]) -> str:
    """Returns the output, followed by one line in brackets for each note."""
    lines = [f"[{note}]" for note in notes]
    if lines and text:
        lines.insert(0, text.rstrip("\n"))
    return "\n".join(lines) if lines else text
