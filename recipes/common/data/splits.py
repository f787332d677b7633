"""Disjoint splits of the keys that tasks are generated from. Makes no tasks."""

from collections.abc import Sequence
from random import Random
from typing import Literal, TypeVar

Split = Literal["train", "heldout"]
HELDOUT_SHARE = 0.2

Key = TypeVar("Key")


def keys_of(split: Split, keys: Sequence[Key], *, seed: int) -> list[Key]:
    """Returns the keys of a split in a shuffled order. The seed decides order and split; a fifth is
    held out."""
    shuffled = Random(seed).sample(keys, len(keys))
    border = int(len(keys) * HELDOUT_SHARE)
    return shuffled[:border] if split == "heldout" else shuffled[border:]
