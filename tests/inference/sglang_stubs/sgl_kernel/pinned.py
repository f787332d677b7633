"""Ordinary memory in place of pinned memory, which torch has only beside an accelerator: SGLang's
LoRA layers pin theirs on a CPU, too."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

FACTORIES = ("arange", "empty", "ones", "tensor", "zeros")


def _without_pins(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(factory)
    def made(*args: Any, **options: Any) -> torch.Tensor:
        options.pop("pin_memory", None)
        return factory(*args, **options)

    return made


def leave_unpinned() -> None:
    for name in FACTORIES:
        setattr(torch, name, _without_pins(getattr(torch, name)))
    torch.Tensor.pin_memory = _itself  # type: ignore[method-assign, assignment]


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
