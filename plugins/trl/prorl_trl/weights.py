"""The trainer's weights, as the inference engines load them: one safetensors file, in pieces.

Not covered: quantised base models, and LoRA under ZeRO-3 or FSDP (merging needs whole matrices).
"""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

PIECE_BYTES = 4 * 2**20
# What PEFT, torch.compile and activation checkpointing add to names; merged adapters, and the
# originals of modules that PEFT trains in full.
_WRAPPERS = re.compile(
    r"base_model\.model\.|base_layer\.|modules_to_save\.default\."
    r"|_orig_mod\.|_checkpoint_wrapped_module\."
)
_ADAPTERS = re.compile(r"\.lora_|\.original_module\.")
_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@contextmanager
def full_weights(trainer: Any) -> Iterator[dict[str, torch.Tensor]]:
    """The policy's weights under the names of its checkpoint, with LoRA adapters merged in.

    A collective: all processes must enter. Only the main one may get tensors (ZeRO-3, FSDP). They
    share memory with the model and are valid inside the context only.
    """
    accelerator = trainer.accelerator
    model = accelerator.unwrap_model(trainer.model)
    is_adapted = hasattr(model, "merge_adapter")
    if is_adapted:
        model.merge_adapter()
    try:
        # `model_wrapped`, because ZeRO-3 gathers through DeepSpeed's engine object.
        weights = checkpoint_names(accelerator.get_state_dict(trainer.model_wrapped))
        if model.config.tie_word_embeddings:
            weights.pop("lm_head.weight", None)
        yield weights
    finally:
        if is_adapted:
            model.unmerge_adapter()


def checkpoint_names(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Named as in the base model's checkpoint, without the adapters' own weights."""
    return {
        _WRAPPERS.sub("", name): tensor
        for name, tensor in weights.items()
        if not _ADAPTERS.search(name)
    }


class SafetensorsFile:
    """The bytes of a safetensors file with `weights`, made piece by piece at each iteration.

    Needs no second copy of the weights. Raises `TypeError` for a dtype that is not floating point.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self._weights = weights
        self._header = _header(weights)

    def __iter__(self) -> Iterator[bytes]:
        yield self._header
        for tensor in self._weights.values():
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
            for start in range(0, flat.numel(), PIECE_BYTES):
                yield flat[start : start + PIECE_BYTES].numpy().tobytes()


def _header(weights: Mapping[str, torch.Tensor]) -> bytes:
    entries, end = {}, 0
    for name, tensor in weights.items():
        if tensor.dtype not in _DTYPE_NAMES:
            raise TypeError(
                f"weight {name!r} is {tensor.dtype}, which engines do not load: "
                "train an unquantised model, or update the engines yourself under `weights='none'`"
            )
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def save(weights: Mapping[str, torch.Tensor], directory: Path, version: int) -> Path:
    """Write `directory`/version-N and remove all older ones but the last, which may be in use."""
    target = directory / f"version-{version}"
    target.mkdir(parents=True, exist_ok=True)
    with (target / "model.safetensors").open("wb") as file:
        file.writelines(SafetensorsFile(weights))
    others = sorted(directory.glob("version-*"), key=lambda path: path.stat().st_mtime)
    for outdated in others[:-2]:
        shutil.rmtree(outdated)
    return target
