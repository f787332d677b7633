"""Eviction by size and age, oldest groups first.

Contents are evicted before rows, so that lists and statistics stay complete. Rows are bounded too:
to half of the shelf, or to all of it once no content is left to evict.
"""

import sqlite3
from collections.abc import Callable

from prorl_service.rollouts.journal.tables import free_pages, give_room_back
from prorl_service.shelf import contents, search
from prorl_service.shelf.policy import ShelfOptions

ROWS_SHARE = 1 / 2
"""Largest part of the shelf that rows, and the index of texts, may take while there is content."""
LOG_SHARE = 1 / 4
MAX_LOG_BYTES = 2**23
"""Share of the shelf, and most bytes, reserved for its write-ahead log. A checkpoint is due at half
of that, since one transaction can still make the log longer."""
SPARE_SHARE = 1 / 32
"""Share of the shelf that may stay as free pages, since they are soon used again."""


class Eviction:
    def __init__(self, db: sqlite3.Connection, options: ShelfOptions) -> None:
        self._db = db
        self._options = options
        (self._page_bytes,) = db.execute("PRAGMA page_size").fetchone()
        self.log_bytes = int(min(MAX_LOG_BYTES, options.bytes * LOG_SHARE))
        self._most_bytes = options.bytes - self.log_bytes
        self._spare_pages = int(options.bytes * SPARE_SHARE / self._page_bytes)

    def evict(self, uptime_s: float, is_over: Callable[[], bool]) -> bool:
        """Evicts group by group until `is_over`. Returns whether there may be more to evict."""
        while (evict := self._next(uptime_s)) is not None:
            evict()
            search.drop_before(self._db, contents.oldest_with_content(self._db))
            if is_over():
                return True
        return False

    def _next(self, uptime_s: float) -> Callable[[], None] | None:
        oldest = contents.oldest(self._db)
        if oldest is None:
            return None
        number, shelved_at = oldest
        if shelved_at < uptime_s - self._options.seconds:
            return lambda: contents.evict_group(self._db, number)
        used = self._used_bytes()
        if used <= self._most_bytes:
            return None
        first_whole = contents.oldest_with_content(self._db)
        rows = used - contents.contents_bytes(self._db)
        if first_whole is None or rows > self._most_bytes * ROWS_SHARE:
            return lambda: contents.evict_group(self._db, number)
        return lambda: contents.evict_content(self._db, first_whole)

    def give_room_back(self, is_over: Callable[[], bool]) -> bool:
        """Returns whether there is more to give back. Call it outside a transaction."""
        if free_pages(self._db) <= self._spare_pages:
            return False
        return give_room_back(self._db, is_over)

    def _used_bytes(self) -> int:
        (pages,) = self._db.execute("PRAGMA page_count").fetchone()
        return int(pages - free_pages(self._db)) * int(self._page_bytes)
