"""The trainer's weights, as the inference engines load them: one safetensors file, in pieces.

Adapters are merged in layer by layer, into what is sent and not into the model: a base in bf16
would drift with each update. Not covered: quantised base models, and LoRA under ZeRO-3 or FSDP
(merging needs whole matrices).
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


class PolicyWeights:
    """The weights of a policy, in the model's memory, under the names of its checkpoint."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], layers: Mapping[str, Any] = {}) -> None:
        """`layers`: PEFT's layer of each tensor to which adapters are added, keyed by name."""
        self.tensors = tensors
        self._layers = layers

    def read(self, name: str) -> torch.Tensor:
        """The weight with its adapters."""
        layer, tensor = self._layers.get(name), self.tensors[name]
        return tensor if layer is None else _merged(layer, name.rpartition(".")[2])


@contextmanager
def full_weights(trainer: Any) -> Iterator[PolicyWeights]:
    """The policy's weights, with LoRA adapters.

    A collective: all processes must enter. Only the main one may get tensors (ZeRO-3, FSDP). They
    are valid inside the context only.
    """
    accelerator = trainer.accelerator
    model = accelerator.unwrap_model(trainer.model)
    # `model_wrapped`, because ZeRO-3 gathers through DeepSpeed's engine object.
    tensors = checkpoint_names(accelerator.get_state_dict(trainer.model_wrapped))
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    yield PolicyWeights(tensors, _adapted_layers(model))


def _adapted_layers(model: Any) -> dict[str, Any]:
    """PEFT's layer of each weight that has adapters, keyed by the weight's name."""
    if not hasattr(model, "merge_adapter"):
        return {}
    from peft.tuners.tuners_utils import BaseTunerLayer

    return {
        f"{_WRAPPERS.sub('', name)}.{parameter}": layer
        for name, layer in model.named_modules()
        if isinstance(layer, BaseTunerLayer)
        for parameter, _ in layer.get_base_layer().named_parameters(recurse=False)
    }


def _merged(layer: Any, parameter: str) -> torch.Tensor:
    """A parameter of PEFT's layer with its adapters merged in; the layer stays as it is."""
    base = layer.get_base_layer()
    originals = {name: one.data for name, one in base.named_parameters(recurse=False)}
    try:
        layer.merge(safe_merge=True)  # into new tensors, which it puts in place of the old ones
        merged: torch.Tensor = getattr(base, parameter).data
    finally:
        for name, original in originals.items():
            getattr(base, name).data = original
        layer.merged_adapters.clear()
    return merged


def checkpoint_names(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Named as in the base model's checkpoint, without the adapters' own weights."""
    return {
        _WRAPPERS.sub("", name): tensor
        for name, tensor in weights.items()
        if not _ADAPTERS.search(name)
    }


class SafetensorsFile:
    """The bytes of a safetensors file with `weights`, made piece by piece at each iteration.

    Needs no second copy of the weights. `dtype`: what they are cast to; None: as they are. Raises
    `TypeError` for a dtype that is not floating point.
    """

    def __init__(self, weights: PolicyWeights, dtype: torch.dtype | None = None) -> None:
        self._weights, self._dtype = weights, dtype
        self._header = _header(weights.tensors, dtype)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._header
        for name in self._weights.tensors:
            tensor = self._weights.read(name).detach()
            tensor = tensor.to(self._dtype or tensor.dtype).contiguous()
            flat = tensor.reshape(-1).view(torch.uint8).cpu().numpy().data
            for start in range(0, len(flat), PIECE_BYTES):
                yield flat[start : start + PIECE_BYTES]


def _header(weights: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> bytes:
    entries, end = {}, 0
    for name, tensor in weights.items():
        if tensor.dtype not in _DTYPE_NAMES:
            raise TypeError(
                f"weight {name!r} is {tensor.dtype}, which engines do not load: "
                "train an unquantised model, or update the engines yourself under `weights='none'`"
            )
        kind = dtype or tensor.dtype
        start, end = end, end + tensor.numel() * kind.itemsize
        entries[name] = {
            "dtype": _DTYPE_NAMES[kind],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def save(file: SafetensorsFile, directory: Path, version: int) -> Path:
    """Write `directory`/version-N and remove all older ones but the last, which may be in use."""
    target = directory / f"version-{version}"
    target.mkdir(parents=True, exist_ok=True)
    with (target / "model.safetensors").open("wb") as opened:
        opened.writelines(file)
    others = sorted(directory.glob("version-*"), key=lambda path: path.stat().st_mtime)
    for outdated in others[:-2]:
        shutil.rmtree(outdated)
    return target
