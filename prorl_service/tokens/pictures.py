"""How a model sees pictures: the tokens that each takes, and the placeholders that it knows.

Engines get a picture's placeholder once, trainers as often as it has tokens; in between, its tokens
have the picture's own id (`schemas.pictures`). Sizes follow Qwen's models with vision; another
family is another `PictureFormat`.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from prorl_service.errors import InvalidRequest
from prorl_service.schemas.pictures import FIRST_ID, id_of, padded, size_of

PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
PAD = "<|image_pad|>"
PROCESSORS = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")
"""Processors of Qwen's models with vision: they resize as `PictureFormat` says."""


@dataclass(frozen=True, slots=True)
class PictureFormat:
    """How a model sees pictures. Sizes are in pixels."""

    pad_id: int
    """Token of the vocabulary for a part of a picture."""
    side: int
    """Side of the square that is one token."""
    least: int
    """Fewest pixels to which a picture is resized."""
    most: int

    @classmethod
    def load(cls, directory: Path, pad_id: int | None) -> "PictureFormat | None":
        """Returns the format by the processor's file; None if the model has none, or another.
        Raises `ValueError` and `KeyError` for a file that does not say it."""
        fields = _processor(directory)
        if pad_id is None or fields.get("image_processor_type") not in PROCESSORS:
            return None
        size = fields.get("size") or {}
        return cls(
            pad_id=pad_id,
            side=int(fields["patch_size"]) * int(fields["merge_size"]),
            least=int(fields.get("min_pixels") or size["shortest_edge"]),
            most=int(fields.get("max_pixels") or size["longest_edge"]),
        )

    def tokens(self, content: bytes) -> int:
        """Returns the number of tokens of a picture. Raises `InvalidRequest`."""
        try:
            width, height = size_of(content)
        except ValueError as error:
            raise InvalidRequest.of_field("messages", str(error)) from None
        rows, columns = self._resized(height, width)
        return rows * columns

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Returns rows and columns of tokens, as `smart_resize` of transformers' processor, whose
        roundings these are."""
        side = self.side
        rows, columns = round(height / side), round(width / side)
        if rows * columns * side**2 > self.most:
            beta = math.sqrt((height * width) / self.most)
            return max(1, math.floor(height / beta / side)), max(1, math.floor(width / beta / side))
        if rows * columns * side**2 < self.least:
            beta = math.sqrt(self.least / (height * width))
            return math.ceil(height * beta / side), math.ceil(width * beta / side)
        return rows, columns

    def expanded(self, ids: Sequence[int], contents: Sequence[bytes]) -> list[int]:
        """Returns ids in which each placeholder is a picture's tokens. Raises `InvalidRequest`
        for pictures that do not fit, or whose number is another."""
        if ids.count(self.pad_id) != len(contents):
            raise InvalidRequest(
                f"the chat template has places for {ids.count(self.pad_id)} pictures, the messages "
                f"have {len(contents)}"
            )
        waiting = iter(contents)
        made: list[int] = []
        for id_ in ids:
            if id_ == self.pad_id:
                content = next(waiting)
                made.extend([id_of(content)] * self.tokens(content))
            else:
                made.append(id_)
        return made

    def compact(self, ids: Sequence[int]) -> list[int]:
        """Returns a chain with one placeholder for each picture: what engines get."""
        return padded([*_runs_as_one(ids)], self.pad_id)

    def padded(self, ids: Sequence[int]) -> list[int]:
        """Returns a chain in the model's own ids."""
        return padded(ids, self.pad_id)


def _runs_as_one(ids: Sequence[int]) -> Iterator[int]:
    for id_, run in groupby(ids):
        yield from [id_] if id_ >= FIRST_ID else run


def _processor(directory: Path) -> dict[str, Any]:
    """Returns the image processor's fields: of its own file, or of the whole processor's."""
    own, whole = directory / "preprocessor_config.json", directory / "processor_config.json"
    if own.is_file():
        return dict(json.loads(own.read_text()))
    return dict(json.loads(whole.read_text()).get("image_processor", {})) if whole.is_file() else {}
