"""Checks a checkpoint against the served model, then copies it in place.

The check touches no weight, so a checkpoint that does not fit is refused while the old weights go
on serving. Floating-point types may differ: the copy converts. Files are mapped into memory, so
they are read once, by the copy.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

MAX_REPORTED = 5


class WeightsRejected(Exception):
    """The checkpoint does not fit the model. No weight was touched."""


class WeightUpdate:
    """Safetensors files that together are one checkpoint of `module`.

    Tied parameters may come under any of their names, or under several if they agree.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters: dict[str, torch.Tensor] = module.state_dict(keep_vars=True)
        self._tensors: dict[str, torch.Tensor] = {}

    def add_directory(self, directory: Path) -> None:
        """Raises `WeightsRejected` as `add` does, and if there is nothing to add."""
        files = sorted(directory.glob("*.safetensors"))
        _reject_if([] if files else [f"{directory} holds no *.safetensors file"])
        for file in files:
            self.add(file)

    def add(self, file: Path) -> None:
        """Raises `WeightsRejected` unless every tensor in `file` fits one of the model's."""
        try:
            tensors = load_file(file)
        except (OSError, SafetensorError) as error:
            raise WeightsRejected(f"cannot read {file.name}: {error}") from error
        problems = (self._problem(name, tensor) for name, tensor in tensors.items())
        _reject_if([problem for problem in problems if problem])
        self._tensors |= tensors

    def check_complete(self) -> None:
        """Raises `WeightsRejected` if a parameter is missing or two that are tied differ."""
        assigned: dict[torch.Tensor, str] = {}
        problems = []
        for name, tensor in self._tensors.items():
            first = assigned.setdefault(self._parameters[name], name)
            if not torch.equal(tensor, self._tensors[first]):
                problems.append(f"{name} differs from {first}, but the served model ties them")
        for name, parameter in self._parameters.items():
            if assigned.setdefault(parameter, name) == name and name not in self._tensors:
                problems.append(f"{name} is missing")
        _reject_if(problems)

    @torch.no_grad()
    def apply(self) -> None:
        for name, tensor in self._tensors.items():
            self._parameters[name].copy_(tensor)

    def _problem(self, name: str, tensor: torch.Tensor) -> str | None:
        if name not in self._parameters:
            return f"{name} is no tensor of the model"
        if name in self._tensors:
            return f"{name} comes twice"
        if not tensor.is_floating_point():
            return f"{name} is {tensor.dtype}, not a floating-point type"
        shape, expected = list(tensor.shape), list(self._parameters[name].shape)
        return None if shape == expected else f"{name} is {shape}, not {expected}"


def _reject_if(problems: list[str]) -> None:
    if problems:
        more = len(problems) - MAX_REPORTED
        listed = "; ".join(problems[:MAX_REPORTED])
        raise WeightsRejected(listed + (f"; and {more} more" if more > 0 else ""))
