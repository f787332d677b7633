"""Checkpoints and LoRA adapters: checked against the served model, then put in place.

The check touches no weight, so a misfit is refused while the old weights continue to serve.
Floating-point types may differ: the copy converts. Files are mapped into memory, so they are read
once, by the copy.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from prorl_service.net.fetching import Fetches, Offer
from prorl_service.schemas import ADAPTER_CONFIG

MAX_REPORTED = 5


class UnfitCheckpoint(Exception):
    """The checkpoint does not fit the model. No weight was touched."""


class Served:
    """The weights that the engine samples with: those of a base model, and perhaps an adapter."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.parameters: dict[str, torch.Tensor] = module.state_dict(keep_vars=True)
        """The model's parameters, keyed by name; an adapter is merged into them."""
        self._base: dict[str, torch.Tensor] = {}
        """Copies of the base model's parameters that have an adapter merged in."""
        self.fetches = Fetches()

    @property
    def has_adapter(self) -> bool:
        return bool(self._base)

    @torch.no_grad()
    def replace(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._base.clear()
        for name, tensor in tensors.items():
            self.parameters[name].copy_(tensor)

    @torch.no_grad()
    def adapt(self, changes: Mapping[str, torch.Tensor]) -> None:
        """Adds `changes` to the base model's weights, replacing those of an earlier adapter."""
        for name, original in self._base.items():
            self.parameters[name].copy_(original)
        for name, change in changes.items():
            parameter = self.parameters[name]
            original = self._base.setdefault(name, parameter.clone())
            parameter.copy_(original.float() + change)


class WeightUpdate:
    """Safetensors files that together are one checkpoint of the model, or one with an adapter.

    Tied parameters may come under any of their names, or under several if they agree.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self._parameters = served.parameters
        self._tensors: dict[str, torch.Tensor] = {}
        self._changes: dict[str, torch.Tensor] = {}
        self._is_fetched = False

    def add_directory(self, directory: Path) -> None:
        """Adds all files of a whole checkpoint. Raises `UnfitCheckpoint`."""
        files = sorted(directory.glob("*.safetensors"))
        _reject_if([] if files else [f"{directory} holds no *.safetensors file"])
        for file in files:
            self.add(file)
        self.check_complete()

    def fetch(self, offer: Offer) -> None:
        """Adds the file that is offered. Raises `FetchFailed`, `UnfitCheckpoint`."""
        fetches = self._served.fetches
        fetches.begin(offer)
        try:
            self.add(Path(f"/proc/self/fd/{fetches.file().fileno()}"))
            self.check_complete()
        except BaseException:
            fetches.end()
            raise
        self._is_fetched = True

    def add(self, file: Path) -> None:
        """Raises `UnfitCheckpoint` unless every tensor in `file` fits one of the model's."""
        try:
            tensors = load_file(file)
            with safe_open(file, "pt") as opened:
                adapter_config = (opened.metadata() or {}).get(ADAPTER_CONFIG)
        except (OSError, SafetensorError) as error:
            raise UnfitCheckpoint(f"cannot read {file.name}: {error}") from error
        if adapter_config is not None:
            self._add_adapter(tensors, _scale(adapter_config))
            return
        problems = (self._problem(name, tensor) for name, tensor in tensors.items())
        _reject_if([problem for problem in problems if problem])
        self._tensors |= tensors

    def _add_adapter(self, tensors: Mapping[str, torch.Tensor], scale: float) -> None:
        """Adds plain LoRA: the change of a matrix is B A times a constant (arXiv 2106.09685)."""
        pairs = {one: one.replace(".lora_A.", ".lora_B.") for one in tensors if ".lora_A." in one}
        odd = sorted(tensors.keys() ^ {*pairs.keys(), *pairs.values()})
        _reject_if([f"{name} has no counterpart" for name in odd])
        problems = []
        for first, second in pairs.items():
            name = first.removeprefix("base_model.model.").replace(".lora_A.", ".")
            left, right = list(tensors[second].shape), list(tensors[first].shape)
            if name not in self._parameters:
                problems.append(f"{name} is not a tensor of the model")
            elif len(left) != 2 or len(right) != 2 or left[1] != right[0]:
                problems.append(f"{name}: {left} times {right} is no matrix product")
            elif [left[0], right[1]] != list(self._parameters[name].shape):
                problems.append(f"{name} is not of shape {[left[0], right[1]]}")
            else:
                self._changes[name] = scale * tensors[second].float() @ tensors[first].float()
        _reject_if(problems)

    def check_complete(self) -> None:
        """Raises `UnfitCheckpoint` if a parameter is missing, two tied ones differ, or an adapter
        comes with other weights."""
        if self._changes:
            _reject_if([f"{name} is not part of the adapter" for name in self._tensors])
            return
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

    def apply(self) -> None:
        if self._changes:
            self._served.adapt(self._changes)
        else:
            self._served.replace(self._tensors)
            if self._is_fetched:
                self._served.fetches.keep()
        self._served.fetches.end()

    def _problem(self, name: str, tensor: torch.Tensor) -> str | None:
        if name not in self._parameters:
            return f"{name} is not a tensor of the model"
        if name in self._tensors:
            return f"{name} occurs twice"
        if not tensor.is_floating_point():
            return f"{name} is {tensor.dtype}, not a floating-point type"
        shape, expected = list(tensor.shape), list(self._parameters[name].shape)
        return None if shape == expected else f"{name} is {shape}, not {expected}"


def _scale(adapter_config: str) -> float:
    """Returns the constant of PEFT's configuration. Raises `UnfitCheckpoint`."""
    try:
        config = json.loads(adapter_config)
        rank = config["r"]
        return float(config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank))
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise UnfitCheckpoint(f"the adapter's configuration is invalid: {error!r}") from error


def _reject_if(problems: list[str]) -> None:
    if problems:
        more = len(problems) - MAX_REPORTED
        listed = "; ".join(problems[:MAX_REPORTED])
        raise UnfitCheckpoint(listed + (f"; and {more} more" if more > 0 else ""))
