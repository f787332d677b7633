"""Pictures of rollouts for a GRPOTrainer's own passes through the model.

A row's tokens name the pictures that the policy saw (`schemas.pictures`): those of its task, in
whichever place, and those of its tools. Where the trainer computes logprobs, they become the
model's placeholders, with the pixels beside them. A row whose pictures are not known fails there:
no model has such tokens.
"""

import io
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from PIL import Image

from prorl_service.client.image_processor import image_processor
from prorl_service.schemas.pictures import FIRST_ID, shown
from prorl_trl import checks
from prorl_trl.convert import TrlRow


def placeholder_of(trainer: Any) -> int | None:
    """Returns the token in the place of pictures; None for a model without vision."""
    found: int | None = getattr(_config(trainer), "image_token_id", None)
    return found


def _config(trainer: Any) -> Any:
    return trainer.accelerator.unwrap_model(trainer.model).config


class RowPictures:
    """Wrapper of a trainer's `_get_per_token_logps_and_entropies`."""

    def __init__(self, trainer: Any) -> None:
        """Does nothing for a model without vision."""
        self._trainer = trainer
        self._known: dict[bool, Mapping[int, bytes]] = {}
        """Contents of pictures by id: of the newest rows to train on, and to evaluate."""
        self._pad_id: Any = placeholder_of(trainer)
        if self._pad_id is None:
            return
        checks.check_hooks("show the model the pictures of rollouts")
        self._computed = trainer._get_per_token_logps_and_entropies
        trainer._get_per_token_logps_and_entropies = self._logps

    def expect(self, rows: Sequence[TrlRow]) -> None:
        """Takes the rows that the trainer is given next, on this process."""
        is_training = bool(self._trainer.model.training)
        self._known[is_training] = {id_: one for row in rows for id_, one in row.pictures.items()}

    def _logps(self, model: Any, input_ids: torch.Tensor, *rest: Any, **options: Any) -> Any:
        ids = [[*shown(row)] for row in input_ids.tolist()]
        if any(ids):
            is_picture = input_ids >= FIRST_ID
            options |= self._pixels(ids, input_ids.device)
            options["mm_token_type_ids"] = is_picture.int()
            input_ids = input_ids.masked_fill(is_picture, self._pad_id)
        return self._computed(model, input_ids, *rest, **options)

    @cached_property
    def _processor(self) -> Any:
        own = getattr(self._trainer.processing_class, "image_processor", None)
        return own or image_processor(_config(self._trainer).name_or_path)

    def _pixels(self, ids: Sequence[Sequence[int]], device: torch.device) -> dict[str, Any]:
        known = {id_: one for kind in self._known.values() for id_, one in kind.items()}
        contents = [known[id_] for row in ids for id_ in row]
        opened = [Image.open(io.BytesIO(one)) for one in contents]
        made = self._processor(images=opened, return_tensors="pt")
        return {
            "pixel_values": made["pixel_values"].to(device),
            "image_grid_thw": made["image_grid_thw"].to(device),
            "num_images": [len(row) for row in ids],
        }
