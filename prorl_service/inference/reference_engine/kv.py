"""Keys and values of sequences, and the memory budget they share.

Every sequence owns one tensor with room for its maximum length, so nothing grows and nothing is
paged. The cache of a finished turn stays until the next turn of its session extends it, or until it
is evicted for room, least recently used first. Caches belong to one set of weights: `clear` the
pool whenever the weights change.
"""

from collections import OrderedDict
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KVLayout:
    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        return self.layers * 2 * self.heads * self.head_dim * self.dtype.itemsize


class KVCache:
    """`data` is [layers, 2, heads, capacity, head_dim], keys then values; `length` are valid."""

    def __init__(self, layout: KVLayout, capacity: int) -> None:
        shape = (layout.layers, 2, layout.heads, capacity, layout.head_dim)
        self.data = torch.empty(shape, dtype=layout.dtype)
        self.capacity = capacity
        self.length = 0

    def extended(self, layer: int, new: torch.Tensor) -> torch.Tensor:
        """Writes `new` [2, heads, tokens, head_dim] after the valid part; returns both."""
        stop = self.length + new.shape[2]
        data = self.data[layer, :, :, :stop]
        data[:, :, self.length :] = new
        return data

    def copy_from(self, other: "KVCache") -> None:
        self.length = other.length
        self.data[:, :, :, : self.length] = other.data[:, :, :, : self.length]


class KVPool:
    """`capacity` tokens, shared by the sequences that run and by finished turns."""

    def __init__(self, layout: KVLayout, capacity: int) -> None:
        self._layout = layout
        self.capacity = self._free = capacity
        self._finished: OrderedDict[str, tuple[list[int], KVCache]] = OrderedDict()

    @property
    def use(self) -> float:
        """Share of the tokens that running sequences have taken; finished turns make way."""
        finished = sum(cache.capacity for _, cache in self._finished.values())
        return 1.0 - (self._free + finished) / self.capacity

    def take(self, capacity: int, prompt_ids: list[int], session_id: str | None) -> KVCache | None:
        """Returns a cache that holds the known part of the prompt; None while there is no room."""
        known_ids, known = self._finished.get(session_id or "", ([], None))
        while self._free < capacity and self._finished:
            self._forget(next(iter(self._finished)))
        if self._free < capacity:
            return None
        self._free -= capacity
        cache = KVCache(self._layout, capacity)
        if known and prompt_ids[: len(known_ids)] == known_ids:
            cache.copy_from(known)
        return cache

    def release(self, cache: KVCache) -> None:
        self._free += cache.capacity

    def keep(self, cache: KVCache, token_ids: list[int], session_id: str) -> None:
        """Releases `cache`, but keeps its valid part for the next turn of the session."""
        self.release(cache)
        self._forget(session_id)
        kept = KVCache(self._layout, cache.length)
        kept.copy_from(cache)
        self._free -= kept.capacity
        self._finished[session_id] = (token_ids, kept)

    def clear(self) -> None:
        for session_id in list(self._finished):
            self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        if entry := self._finished.pop(session_id, None):
            self.release(entry[1])
