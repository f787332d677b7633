"""Output of a call that is still running, for viewers.

Coalesced and bounded: a piece leaves at most every `INTERVAL_S`, with the first and last bytes of
what came since the last one. The result of the call does not depend on it.
"""

import time
from collections.abc import Callable

from .loop import Loop
from .output import HeadTail

INTERVAL_S = 0.1
FIRST_AFTER_S = 0.01
"""Seconds after the first byte whose output leaves together with it."""
PIECE_BYTES = 16 * 1024


class Stream:
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
