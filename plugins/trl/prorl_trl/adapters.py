"""LoRA adapters of a policy: merged into the weights of its layers, or by themselves.

Merging goes layer by layer, into what is sent and not into the model: a base in bf16 would drift
with each update. Not covered: quantised base models, and merging under ZeRO-3 or FSDP1, which needs
whole matrices.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

# What PEFT, torch.compile and activation checkpointing add to names; merged adapters, and the
# originals of modules that PEFT trains in full.
_WRAPPERS = re.compile(
    r"base_model\.model\.|base_layer\.|modules_to_save\.default\."
    r"|_orig_mod\.|_checkpoint_wrapped_module\."
)
_PACKING = re.compile(r"_orig_mod\.|_checkpoint_wrapped_module\.")
_OF_ADAPTERS = re.compile(r"\.lora_|\.original_module\.")
_OF_LORA = re.compile(r"(?P<layer>.*)\.(?P<matrix>lora_[AB])\.\w+\.weight")
_PLAIN_INITS = (True, False, "gaussian", "orthogonal")
"""Ways to begin that leave the base model as it is."""
_MORE_THAN_LORA = (
    *("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices", "target_parameters"),
    *("layer_replication", "rank_pattern", "alpha_pattern", "alora_invocation_tokens"),
    *("use_bdlora", "use_qalora"),
)
"""Settings of PEFT's LoRA with which engines do not put it on by themselves."""
_lock = threading.Lock()
"""Held while a layer's weights are those with its adapters."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that engines can put on their base model by themselves."""

    tensors: Mapping[str, torch.Tensor]
    """Its matrices, keyed by the names that PEFT saves them under."""
    config: str
    """JSON text of PEFT's adapter_config.json."""
    rank: int
    base: str
    """Name or directory of the base model."""

    def read(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.tensors.items()


def checkpoint_name(name: str) -> str:
    return _WRAPPERS.sub("", name)


def is_of_base(name: str) -> bool:
    return not _OF_ADAPTERS.search(name)


def adapted_layers(model: Any) -> dict[str, Any]:
    """PEFT's layer of each weight that has adapters, keyed by the weight's name."""
    if not hasattr(model, "merge_adapter"):
        return {}
    from peft.tuners.tuners_utils import BaseTunerLayer

    return {
        f"{checkpoint_name(name)}.{parameter}": layer
        for name, layer in model.named_modules()
        if isinstance(layer, BaseTunerLayer)
        for parameter, _ in layer.get_base_layer().named_parameters(recurse=False)
    }


def merged(layer: Any, parameter: str) -> torch.Tensor:
    """A parameter of PEFT's layer with its adapters merged in; the layer stays as it is. Of a layer
    in shards, this process' shard. Raises `TypeError` if adapters cannot be merged into shards."""
    base = layer.get_base_layer()
    shard = getattr(base, parameter)
    if isinstance(shard, DTensor):
        return _merged_shard(layer, parameter, shard)
    with _lock:
        originals = {name: one.data for name, one in base.named_parameters(recurse=False)}
        try:
            layer.merge(safe_merge=True)  # into new tensors, which it puts in place of the old ones
            result: torch.Tensor = getattr(base, parameter).data
        finally:
            for name, original in originals.items():
                getattr(base, name).data = original
            layer.merged_adapters.clear()
    return result


def _merged_shard(layer: Any, parameter: str, shard: DTensor) -> torch.Tensor:
    """PEFT puts the merged weight in place of `data`, which shards do not follow."""
    adapters = layer.active_adapters
    is_plain = all(hasattr(layer, "get_delta_weight") and one in layer.lora_A for one in adapters)
    if not is_plain or any(layer.use_dora.get(one) or layer.lora_bias.get(one) for one in adapters):
        raise TypeError("under FSDP2 only plain LoRA can be merged into what engines get")
    if parameter != "weight":
        return shard
    total: torch.Tensor = shard.detach()
    for adapter in adapters:
        total = total + layer.get_delta_weight(adapter).detach().to(shard.dtype)
    return total


def adapter_of(model: Any, tensors: Mapping[str, torch.Tensor]) -> Adapter | None:
    """The only adapter of the model, if it is plain LoRA and all that is trained. `tensors`: those
    of the model."""
    configs = list(getattr(model, "peft_config", {}).values())
    fields = configs[0].to_dict() if len(configs) == 1 else {}
    if (
        fields.get("peft_type") != "LORA"
        or fields["bias"] != "none"
        or fields["init_lora_weights"] not in _PLAIN_INITS
        or any(fields.get(setting) for setting in _MORE_THAN_LORA)
    ):
        return None
    added = {name: tensor for name, tensor in tensors.items() if not is_of_base(name)}
    found = {name: _OF_LORA.fullmatch(_PACKING.sub("", name)) for name in added}
    matrices = {
        f"{one['layer']}.{one['matrix']}.weight": added[name] for name, one in found.items() if one
    }
    if len(matrices) < len(added):  # of embeddings
        return None
    config = json.dumps(fields, default=list)
    return Adapter(matrices, config, fields["r"], str(fields["base_model_name_or_path"]))
