"""Stop texts, at which a program wants a reply to end: where sampled ids complete one. Pure."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple


class StopText(NamedTuple):
    text: str
    tokens: int
    """Number of ids up to the one that completes the text."""


def first_stop(
    ids: Sequence[int], texts: Sequence[str], piece: Callable[[int], bytes]
) -> StopText | None:
    """Returns the text that the ids complete first. `piece`: the bytes of an id."""
    pieces = [piece(id_) for id_ in ids] if texts else []
    sampled = b"".join(pieces)
    places = [(sampled.find(text.encode()), text) for text in texts]
    found = [(place + len(text.encode()), place, text) for place, text in places if place >= 0]
    if not found:
        return None
    end, _, text = min(found)
    ends = accumulate(map(len, pieces))
    return StopText(text, 1 + next(number for number, one in enumerate(ends) if one >= end))
