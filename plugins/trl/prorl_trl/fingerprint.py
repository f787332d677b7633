"""Fingerprint of a policy, by which a push of its weights may be skipped.

Steps of the trainer say little: callbacks, averages of weights, checkpoints and a second training
change the policy too, and writes to `Tensor.data` do not even move autograd's counters. So each
weight is read once a call. What cannot be read has no fingerprint, and is pushed each time.
"""

import hashlib
import json
from itertools import chain
from typing import Any

import torch
from accelerate.utils import DistributedType, gather_object
from torch.distributed.tensor import DTensor

Fingerprint = tuple[str, ...]
"""Digests of what each process has of the policy."""

_CHUNK = 1 << 20
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(trainer: Any) -> Fingerprint | None:
    """Returns the same in all processes, None if a weight cannot be read. A collective."""
    accelerator = trainer.accelerator
    model = accelerator.unwrap_model(trainer.model)
    may_be_empty = accelerator.distributed_type is DistributedType.FSDP
    digests = gather_object([_digest(model, may_be_empty=may_be_empty)])
    return None if None in digests else tuple(digests)


def _digest(model: Any, *, may_be_empty: bool) -> str | None:
    parts = [json.dumps(_state_of_adapters(model))]
    sums: list[torch.Tensor] = []
    multipliers: dict[torch.device, torch.Tensor] = {}
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        local = _local(tensor)
        # FSDP1 gives some processes nothing of a weight; elsewhere its content is in another place.
        if type(local) not in (torch.Tensor, torch.nn.Parameter) or local.is_meta:
            return None
        if not local.numel() and not may_be_empty:
            return None
        parts.append(f"{name} {local.dtype} {list(local.shape)}")
        if local.device not in multipliers:
            multipliers[local.device] = _multipliers(local.device)
        sums.append(_sum(local, multipliers[local.device]))
    parts += [str(int(one)) for one in sums]  # after the last one: a GPU works ahead
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _local(tensor: Any) -> Any:
    """Returns what this process has of a weight: under ZeRO-3 the weight itself is empty."""
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    return getattr(tensor, "ds_tensor", tensor)


def _multipliers(device: torch.device) -> torch.Tensor:
    """Returns odd numbers, so that no change of a single element leaves the sum as it is."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-(2**62), 2**62, (_CHUNK,), generator=generator).to(device) | 1


@torch.no_grad()
def _sum(tensor: torch.Tensor, multipliers: torch.Tensor) -> torch.Tensor:
    """Returns a weighted sum of the tensor's bits as integers, modulo 2**64."""
    bits = tensor.detach().reshape(-1).view(_INTEGERS.get(tensor.element_size(), torch.uint8))
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, bits.numel(), _CHUNK):
        chunk = bits[start : start + _CHUNK]
        total = total * 31 + (chunk * multipliers[: chunk.numel()]).sum()
    return total


def _state_of_adapters(model: Any) -> list[tuple[str, dict[str, Any]]]:
    """Returns which adapters are active, merged and switched off, their scales and more."""
    if not hasattr(model, "peft_config"):
        return []
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return [
        (name, {key: value for key, value in vars(module).items() if _is_setting(key, value)})
        for name, module in model.named_modules()
        if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper))
    ]


def _is_setting(key: str, value: Any) -> bool:
    if key == "training":  # evaluation sends the same weights
        return False
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True
