"""Pictures of rollouts for VeRL's engines and its trainer's passes through the model.

Rows come with tokens that name the pictures which the policy saw (`schemas.pictures`). VeRL takes
the model's placeholders, positions in time, height and width (M-RoPE), and the pixels beside them.
The processor is that of the trainer's model: where it makes another number of tokens of a picture
than the service counted, the call fails.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from PIL import Image
from transformers import AutoConfig

from prorl_service.client.image_processor import image_processor
from prorl_service.errors import BackendRejected
from prorl_service.schemas.pictures import FIRST_ID, padded, positions, shown
from prorl_verl.rows import Row

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
"""Types of models whose positions these are, by transformers' names."""


class Vision:
    def __init__(self, processor: Any, pad_id: int) -> None:
        self._processor, self._pad_id = processor, pad_id

    @classmethod
    def of(cls, model: str, trust_remote_code: bool) -> "Vision | None":
        """Returns the vision of a model, by its directory; None if it has none."""
        config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
        if config.model_type not in FAMILIES:
            return None
        return cls(image_processor(model), config.image_token_id)

    def expanded(self, prompt: list[int], pictures: Sequence[bytes]) -> list[int]:
        """Returns the prompt with as many placeholders as each picture has tokens. Raises
        `BackendRejected`."""
        if prompt.count(self._pad_id) != len(pictures):
            raise BackendRejected("the prompt has another number of placeholders than of pictures")
        grids = iter(self._processed(pictures)["image_grid_thw"])
        made: list[int] = []
        for id_ in prompt:
            tokens = self._tokens(next(grids)) if id_ == self._pad_id else 1
            made += [id_] * tokens
        return made

    def shown(self, row: Row, contents: Mapping[int, bytes]) -> Row | None:
        """Returns the row as VeRL takes it; None if the policy sampled the placeholder, which the
        model would take for another picture."""
        row = _whole(row)
        ids = [*row.prompt_ids, *row.response_ids]
        if self._pad_id in ids:
            return None
        processed = self._processed([contents[one] for one in shown(ids)])
        places, at = [], 0
        for _, rows, columns in processed.get("image_grid_thw", torch.empty(0, 3)).tolist():
            start = next(place for place in range(at, len(ids)) if ids[place] >= FIRST_ID)
            grid = rows // self._processor.merge_size, columns // self._processor.merge_size
            places.append((start, *grid))
            at = start + grid[0] * grid[1]
        axes = torch.tensor(positions(len(ids), places))
        return replace(
            row,
            prompt_ids=padded(row.prompt_ids, self._pad_id),
            response_ids=padded(row.response_ids, self._pad_id),
            verl_fields={
                "position_ids": torch.cat([torch.arange(len(ids))[None], axes]),
                "multi_modal_inputs": processed,
            },
        )

    def _processed(self, pictures: Sequence[bytes]) -> dict[str, torch.Tensor]:
        """Returns VeRL's `multi_modal_inputs`; nothing without pictures."""
        if not pictures:
            return {}
        made = dict(self._processor(images=opened(pictures), return_tensors="pt"))
        grid = made["image_grid_thw"]
        return made | {
            "images_seqlens": torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
        }

    def _tokens(self, grid: torch.Tensor) -> int:
        return int(grid.prod()) // int(self._processor.merge_size) ** 2


def opened(pictures: Sequence[bytes]) -> list[Image.Image]:
    return [Image.open(io.BytesIO(one)).convert("RGB") for one in pictures]


def _whole(row: Row) -> Row:
    """Cuts a picture off at the end of a row that was cut within it."""
    ids = row.response_ids
    stop = next((n for n in range(len(ids), 0, -1) if ids[n - 1] < FIRST_ID), 0)
    return replace(
        row,
        response_ids=ids[:stop],
        response_mask=row.response_mask[:stop],
        logprobs=row.logprobs[:stop],
    )
