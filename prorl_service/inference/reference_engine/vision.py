"""What a model sees: the features of pictures in the place of their tokens, and positions.

Follows transformers' Qwen2.5-VL: a picture's tokens share their position in time, and have one of
their own in height and width each (arXiv 2409.12191). Knows nothing of caches and batches.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import PreTrainedModel

from prorl_service.client.image_processor import image_processor
from prorl_service.schemas.pictures import FIRST_ID, id_of, padded, positions

MODELS = ("qwen2_vl", "qwen2_5_vl")
"""Types of models that see here, by transformers' names."""
KEPT = 64
"""Pictures whose features are kept."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A picture in a prompt: its tokens are `start:stop`, in rows of `columns`."""

    start: int
    stop: int
    columns: int
    content: bytes

    @property
    def rows(self) -> int:
        return (self.stop - self.start) // self.columns


class Sight:
    """The pictures of one prompt."""

    def __init__(self, prompt_ids: Sequence[int], places: Sequence[_Shown]) -> None:
        self._places = places
        grids = [(one.start, one.rows, one.columns) for one in places]
        self._positions = torch.tensor(positions(len(prompt_ids), grids))

    def positions(self, start: int, stop: int) -> torch.Tensor:
        """Returns int64 [3, stop - start]: time, height and width of each token."""
        length = self._positions.shape[1]
        known = self._positions[:, start:stop]
        later = torch.arange(max(start, length), max(stop, length)).expand(3, -1)
        shift = self._positions[0, -1] + 1 - length  # a prompt ends with text
        return torch.cat([known, later + shift], dim=1)

    def parts(self, start: int, stop: int) -> list[tuple[bytes, slice, slice]]:
        """Returns the pictures among these tokens: content, the rows of its features that are
        there, and where, counted from `start`."""
        found = []
        for place in self._places:
            first, last = max(start, place.start), min(stop, place.stop)
            if first < last:
                rows = slice(first - place.start, last - place.start)
                found.append((place.content, rows, slice(first - start, last - start)))
        return found


class VisionTower:
    def __init__(self, module: PreTrainedModel, directory: Path) -> None:
        self._module: Any = module
        self._processor = image_processor(str(directory))
        self.pad_id: int = module.config.image_token_id
        self._features = lru_cache(KEPT)(self._computed)

    def expanded(self, ids: Sequence[int], contents: Sequence[bytes]) -> tuple[list[int], Sight]:
        """Returns a prompt in which each placeholder is a picture's tokens, by their own id.
        Raises `ValueError` for other numbers of pictures, or one that cannot be read."""
        waiting = list(contents)
        made: list[int] = []
        places = []
        for id_ in ids:
            if id_ != self.pad_id or not waiting:
                made.append(id_)
                continue
            content = waiting.pop(0)
            _, rows, columns = self._processed(content)["image_grid_thw"][0].tolist()
            merge = self._processor.merge_size
            count = rows * columns // merge**2
            places.append(_Shown(len(made), len(made) + count, columns // merge, content))
            made += [id_of(content)] * count
        if waiting:
            raise ValueError("Failed to apply prompt replacement: more pictures than placeholders")
        return made, Sight(made, places)

    def padded(self, ids: Sequence[int]) -> list[int]:
        """Returns ids of the vocabulary, as many."""
        return padded(ids, self.pad_id)

    def embedded(self, ids: torch.Tensor, parts: Sequence[tuple[bytes, slice, slice]]) -> Any:
        """Returns embeddings [tokens, hidden] of ids, [tokens]. `parts`: as `Sight` gives them."""
        known = torch.where(ids >= FIRST_ID, self.pad_id, ids)
        embeds = self._module.get_input_embeddings()(known)
        for content, rows, where in parts:
            embeds[where] = self._features(content)[rows].to(embeds.dtype)
        return embeds

    def forget(self) -> None:
        """Forgets features, which belong to one set of weights."""
        self._features.cache_clear()

    def _computed(self, content: bytes) -> torch.Tensor:
        inputs = self._processed(content)
        found = self._module.get_image_features(
            inputs["pixel_values"].to(self._module.dtype), inputs["image_grid_thw"]
        )
        features: torch.Tensor = torch.cat(list(found.pooler_output))
        return features

    def _processed(self, content: bytes) -> Any:
        try:
            with Image.open(io.BytesIO(content)) as picture:
                return self._processor(images=[picture.convert("RGB")], return_tensors="pt")
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"a picture cannot be read: {error}") from error
