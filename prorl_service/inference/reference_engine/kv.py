"""Keys and values of sequences, and the memory budget they share.

Every sequence owns one tensor with room for its maximum length, so nothing grows and nothing is
paged. A new sequence copies what another one has computed of its first tokens: the turn before it,
a sibling's prompt, a system prompt. The cache of a finished turn stays until the next turn of its
session replaces it, or until it is evicted for room, least recently used first. Caches belong to
one set of weights: `clear` the pool whenever the weights change.
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

    def copy_from(self, other: "KVCache", length: int) -> None:
        self.length = length
        self.data[:, :, :, :length] = other.data[:, :, :, :length]


def common_prefix(left: list[int], right: list[int]) -> int:
    """Returns how many first tokens two lists share, by comparing slices."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


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

    def take(self, capacity: int, prompt_ids: list[int]) -> KVCache | None:
        """Returns a cache that holds what finished turns have of the prompt, but for its last
        token; None while there is no room."""
        known, length = self._longest(prompt_ids[:-1])
        while self._free < capacity and self._finished:
            self._forget(next(iter(self._finished)))
        if self._free < capacity:
            return None
        self._free -= capacity
        cache = KVCache(self._layout, capacity)
        if known is not None:
            cache.copy_from(known, length)
        return cache

    def _longest(self, prompt_ids: list[int]) -> tuple[KVCache | None, int]:
        best: tuple[KVCache | None, int] = (None, 0)
        for token_ids, cache in self._finished.values():
            if (shared := common_prefix(prompt_ids, token_ids)) > best[1]:
                best = (cache, min(shared, cache.length))
        return best

    def release(self, cache: KVCache) -> None:
        self._free += cache.capacity

    def keep(self, cache: KVCache, token_ids: list[int], session_id: str) -> None:
        """Releases `cache`, but keeps its valid part for the next turn of the session."""
        self.release(cache)
        self._forget(session_id)
        kept = KVCache(self._layout, cache.length)
        kept.copy_from(cache, cache.length)
        self._free -= kept.capacity
        self._finished[session_id] = (token_ids, kept)

    def clear(self) -> None:
        for session_id in list(self._finished):
            self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        if entry := self._finished.pop(session_id, None):
            self.release(entry[1])
