"""A prompt and its JSON, so that a turn encodes only the ids that the turn before did not have.

Everything else that a call does with a long prompt is copying bytes. Knows nothing of engines.
"""

from array import array
from collections.abc import Sequence

import orjson

from prorl_service.schemas.pictures import FIRST_ID


class EncodedPrompt:
    """Immutable."""

    def __init__(self, ids: Sequence[int], before: "EncodedPrompt | None" = None) -> None:
        """`before`: a prompt that may be a prefix of this one. Raises `OverflowError` for an id
        that is not an int32."""
        self._ids = array("i", ids)
        self._items = b""
        self._least = self._greatest = 0
        known = 0
        if before is not None and before.is_prefix_of(self._ids):
            known, self._items = len(before), before._items
            self._least, self._greatest = before._least, before._greatest
        new = self._ids[known:]
        fresh = orjson.dumps(new.tolist())[1:-1]
        self._items += b"," + fresh if self._items and fresh else fresh
        self._least = min(self._least, min(new, default=0))
        if (greatest := max(new, default=0)) >= FIRST_ID:
            greatest = max((one for one in new if one < FIRST_ID), default=0)
        self._greatest = max(self._greatest, greatest)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> Sequence[int]:
        return self._ids

    def extended(self, ids: Sequence[int]) -> "EncodedPrompt":
        return EncodedPrompt(self._ids + array("i", ids), before=self)

    def is_of(self, vocab_size: int) -> bool:
        """Returns whether a model with that many ids knows all of them but the pictures'."""
        return self._least >= 0 and self._greatest < vocab_size

    def is_prefix_of(self, ids: "array[int]") -> bool:
        return ids[: len(self._ids)] == self._ids

    def json(self) -> bytes:
        """Returns a list of numbers."""
        return b"[%b]" % self._items
