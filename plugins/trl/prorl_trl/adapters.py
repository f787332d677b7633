"""LoRA adapters of a policy: merged into the weights of its layers, or on their own.

Merging goes layer by layer, into what is sent and not into the model: a base in bf16 would drift
with each update. Not supported: quantised base models, and merging under ZeRO-3 or FSDP1, which
needs whole matrices.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

# Parts of names that PEFT, torch.compile and activation checkpointing add; those of adapters, and
# of the originals of modules that PEFT trains in full.
_WRAPPERS = re.compile(
    r"base_model\.model\.|base_layer\.|token_adapter\.|modules_to_save\.default\."
    r"|_orig_mod\.|_checkpoint_wrapped_module\."
)
_PACKING = re.compile(r"_orig_mod\.|_checkpoint_wrapped_module\.")
_OF_ADAPTERS = re.compile(r"\.lora_|\.original_module\.")
_COPY = re.compile(r"modules_to_save\.(\w+)\.")
_OF_LORA = re.compile(r"(?P<layer>.*)\.(?P<matrix>lora_[AB])\.\w+\.weight")
_PLAIN_INITS = (True, False, "gaussian", "orthogonal")
"""Initialisations that leave the base model as it is."""
_MORE_THAN_LORA = (
    *("use_dora", "lora_bias", "modules_to_save", "trainable_token_indices", "target_parameters"),
    *("layer_replication", "rank_pattern", "alpha_pattern", "alora_invocation_tokens"),
    *("use_bdlora", "use_qalora"),
)
"""Settings of PEFT's LoRA with which engines cannot apply an adapter themselves."""
_lock = threading.Lock()
"""Lock that is held while a layer's weights include its adapters."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that engines can apply to their base model themselves."""

    tensors: Mapping[str, torch.Tensor]
    """Matrices, keyed by the names that PEFT saves them under."""
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
    """Returns PEFT's layer of each weight that has adapters, keyed by the weight's name."""
    return {
        checkpoint_name(f"{name}.{parameter}"): layer
        for layer, name in layers_of(model).items()
        for parameter, _ in layer.get_base_layer().named_parameters(recurse=False)
    }


def layers_of(model: Any) -> dict[Any, str]:
    """Returns PEFT's layers with their names."""
    if not hasattr(model, "peft_config"):
        return {}
    from peft.tuners.tuners_utils import BaseTunerLayer

    modules = model.named_modules()
    return {one: name for name, one in modules if isinstance(one, BaseTunerLayer)}


def of_active(model: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns `tensors`, with the copies of modules that the active adapter trains in full as those
    of "default", and without those of others. An adapter that is switched off has none."""
    if not hasattr(model, "peft_config"):
        return dict(tensors)
    active = [] if is_off(model) else model.active_adapters
    kept = {}
    for name, tensor in tensors.items():
        copied = _COPY.search(name)
        if copied is None or copied[1] in active:
            kept[_COPY.sub("modules_to_save.default.", name)] = tensor
    if is_off(model):
        return {name.replace(".original_module.", "."): one for name, one in kept.items()}
    return kept


def is_off(model: Any) -> bool:
    """Returns whether all adapters are switched off. Raises `ValueError` if some are."""
    states = {one.disable_adapters for one in layers_of(model)}
    if len(states) > 1:
        raise ValueError("some of the policy's adapters are switched off and others are not")
    return states == {True}


def merged(layer: Any, parameter: str) -> torch.Tensor:
    """Returns a parameter of PEFT's layer with its adapters merged in, without changing the layer.
    For a layer in shards, this process's shard. Raises `TypeError` if adapters cannot be merged
    into shards."""
    base = layer.get_base_layer()
    shard: torch.Tensor = getattr(base, parameter)
    if layer.merged:
        if set(layer.merged_adapters) != set(layer.active_adapters):
            raise TypeError(
                "the adapters that are merged are not those that are active: unmerge them"
            )
        return shard.data
    if isinstance(shard, DTensor):
        return _merged_shard(layer, parameter, shard)
    with _lock:
        originals = {name: one.data for name, one in base.named_parameters(recurse=False)}
        try:
            layer.merge(safe_merge=True)  # into new tensors, which replace the old ones
            result: torch.Tensor = getattr(base, parameter).data
        finally:
            for name, original in originals.items():
                getattr(base, name).data = original
            layer.merged_adapters.clear()
    return result


def _merged_shard(layer: Any, parameter: str, shard: DTensor) -> torch.Tensor:
    """Merges without PEFT's `merge`, which replaces `data`: shards do not follow that."""
    adapters = layer.active_adapters
    is_plain = all(hasattr(layer, "get_delta_weight") and one in layer.lora_A for one in adapters)
    if not is_plain or any(layer.use_dora.get(one) or layer.lora_bias.get(one) for one in adapters):
        raise TypeError(
            "under FSDP2 only plain LoRA can be merged into the weights that engines get"
        )
    if parameter != "weight":
        return shard
    total: torch.Tensor = shard.detach()
    for adapter in adapters:
        total = total + layer.get_delta_weight(adapter).detach().to(shard.dtype)
    return total


def adapter_of(model: Any, tensors: Mapping[str, torch.Tensor]) -> Adapter | None:
    """Returns the model's only adapter, if it is plain LoRA and all that is trained, else None.
    `tensors`: those of the model."""
    configs = list(getattr(model, "peft_config", {}).values())
    if len(configs) != 1 or is_off(model) or any(one.merged for one in layers_of(model)):
        return None
    fields = configs[0].to_dict()
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
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    # Embeddings have adapters, too, or more is trained than adapters.
    if len(matrices) < len(added) or not trained <= {_PACKING.sub("", name) for name in added}:
        return None
    config = json.dumps(fields, default=list)
    return Adapter(matrices, config, fields["r"], str(fields["base_model_name_or_path"]))
