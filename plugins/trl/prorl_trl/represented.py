"""Whether the weights that are sent are the policy that is trained, asked of the model itself.

A kind of adapter is allowed if a layer of it, with other numbers in it, is merged exactly: no list
of kinds would know the next release of PEFT. Looked at before the first push, and again when what
is trained, or how, has changed. Layers in shards cannot be tried.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from prorl_service.errors import ProRLError
from prorl_trl.adapters import adapted_layers, checkpoint_name, is_off, merged, of_active

UNTIED = (
    "the engines tie head and embeddings, this policy trains them apart: train with "
    "`LoraConfig(ensure_weight_tying=True)`, adapt neither of them, or give trainer and engines a "
    "checkpoint with `tie_word_embeddings: false`"
)
TOLERANCE = 1e-4
"""Largest error of a merged layer's output, relative to the output."""


class NotRepresented(ProRLError, ValueError):
    """The engines' weights cannot be those of the policy."""


class Representation:
    """Check of a policy at its first push, and again when another part of it is trained."""

    def __init__(self) -> None:
        self._checked = ""

    def check(self, model: Any, sent: Mapping[str, torch.Tensor]) -> None:
        """Raises `NotRepresented`."""
        structure = _structure(model)
        if structure != self._checked:
            check_represented(model, {name: one.shape for name, one in sent.items()})
            self._checked = structure


def _structure(model: Any) -> str:
    """Returns what decides whether weights can represent the policy, for comparison."""
    trained = [(name, one.requires_grad) for name, one in model.named_parameters()]
    configs = getattr(model, "peft_config", {})
    kinds = [(name, str(config), str(model.active_adapters)) for name, config in configs.items()]
    return json.dumps([trained, kinds, is_off(model), model.config.tie_word_embeddings])


def checkpoint_shapes(model: Any) -> dict[str, torch.Size]:
    """Returns names and shapes of the checkpoint that engines of this model have."""
    base = _base(model)
    with torch.device("meta"):
        empty = type(base)(copy.deepcopy(base.config))
    shapes = {name: one.shape for name, one in empty.state_dict().items()}
    if base.config.tie_word_embeddings:
        shapes.pop(_weight_name(empty, empty.get_output_embeddings()), None)
    return shapes


def check_represented(model: Any, sent: Mapping[str, torch.Size]) -> None:
    """Raises `NotRepresented` for a policy of which weights of these names and shapes lose a
    part."""
    _check_tie(model)
    layers = {} if is_off(model) else adapted_layers(model)
    _check_trained(model, {*sent, head_name(model)}, layers)
    _check_names(model, sent)
    _check_merging(layers)


def _check_names(model: Any, sent: Mapping[str, torch.Size]) -> None:
    shapes = checkpoint_shapes(model)
    for name, shape in sent.items():
        if name not in shapes or shapes[name] != shape:
            wanted = list(shapes[name]) if name in shapes else "nothing"
            raise NotRepresented(
                f"the policy has {name} of shape {list(shape)}, the engines' checkpoint has "
                f"{wanted} of that name",
                hint="give trainer and engines one checkpoint",
            )
    named = model.named_parameters()
    frozen = {checkpoint_name(name) for name, one in named if not one.requires_grad}
    if missing := shapes.keys() - sent.keys() - frozen:
        raise NotRepresented(
            f"the engines' checkpoint has {min(missing)}, this policy has not",
            hint="give trainer and engines one checkpoint",
        )


def _check_trained(model: Any, sent: set[str], layers: Mapping[str, Any]) -> None:
    """`sent`: names of weights, with that of a head which is sent as the embeddings."""
    inside = {
        id(one) for name, layer in layers.items() if name in sent for one in layer.parameters()
    }
    inactive = _inactive_copies(model)
    for name, parameter in of_active(model, dict(model.named_parameters())).items():
        is_lost = checkpoint_name(name) not in sent and id(parameter) not in inside
        if parameter.requires_grad and is_lost and id(parameter) not in inactive:
            raise NotRepresented(
                f"{name} is trained, and no weight of the engines' checkpoint holds it",
                hint="train what engines can have: `LoraConfig(target_modules=...)`, or the "
                "model's own weights; or freeze it with `requires_grad_(False)`",
            )


def _check_tie(model: Any) -> None:
    base = _base(model)
    if not base.config.tie_word_embeddings or base.get_output_embeddings() is None:
        return
    # PEFT puts its own layers into their places.
    sides = base.get_input_embeddings(), base.get_output_embeddings()
    storages = [{_place(one) for one in side.parameters()} for side in sides]
    is_trained = any(one.requires_grad for side in sides for one in side.parameters())
    if storages[0] == storages[1]:
        return
    if is_trained or not torch.equal(*(side.weight.detach().cpu() for side in sides)):
        raise NotRepresented(UNTIED)


def _place(parameter: Any) -> Any:
    """Returns the memory of a weight, or the weight itself where that is elsewhere (ZeRO-3)."""
    local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return local.untyped_storage().data_ptr() or id(parameter)


def _check_merging(layers: Mapping[str, Any]) -> None:
    tried = set()
    for name, layer in layers.items():
        kind = (type(layer), type(layer.get_base_layer()))
        parts = list(layer.parameters())
        if kind in tried or any(isinstance(one, DTensor) or not one.numel() for one in parts):
            continue
        tried.add(kind)
        if problem := _merging_problem(layer):
            raise NotRepresented(
                f"engines cannot have the adapter of {name} ({kind[0].__module__}): {problem}",
                hint="take a kind of adapter that merges into weights, such as "
                "`LoraConfig(target_modules='all-linear')`",
            )


@torch.no_grad()
def _merging_problem(layer: Any) -> str | None:
    """Returns why a copy of the layer, with other numbers in its adapter, is not what it computes
    when the adapter is merged."""
    try:
        trial = _copy(layer).eval()
        if trial.merged:
            trial.unmerge()
        generator = torch.Generator().manual_seed(0)
        for one in trial.parameters():
            if one.requires_grad and one.is_floating_point():
                one.add_(0.1 * torch.randn(one.shape, generator=generator))
        base = trial.get_base_layer()
        inputs = _inputs(base, generator)
        wanted = trial(inputs)
        weights = {name: merged(trial, name) for name, _ in base.named_parameters(recurse=False)}
        got = torch.func.functional_call(base, weights, (inputs,))
        again = trial(inputs)
    except Exception as error:  # foreign code of each kind of adapter
        return f"{type(error).__name__}: {error}"
    scale = TOLERANCE * float(wanted.abs().max())
    if not torch.allclose(wanted, got, rtol=0, atol=scale):
        return "merged into the weights it computes something else"
    if not torch.allclose(wanted, again, rtol=0, atol=scale):
        return "merging changes it"
    return None


def _copy(layer: Any) -> Any:
    """Returns the layer in fp32 on the CPU. `deepcopy` refuses tensors that are no leaves, which
    PEFT keeps of weights that it ties."""
    found = [one for module in layer.modules() for one in _tensors(vars(module))]
    memo: dict[int, Any] = {}
    for one in found:
        clone = one.detach().cpu().clone()
        clone = clone.float() if clone.is_floating_point() else clone
        is_parameter = isinstance(one, torch.nn.Parameter)
        memo[id(one)] = torch.nn.Parameter(clone, one.requires_grad) if is_parameter else clone
    return copy.deepcopy(layer, memo)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _inputs(base: Any, generator: torch.Generator) -> torch.Tensor:
    if isinstance(base, torch.nn.Embedding):
        return torch.randint(base.num_embeddings, (2, 8), generator=generator)
    width = base.weight.shape[-1] if base.weight.ndim == 1 else base.in_features
    return torch.randn((2, 8, width), generator=generator)


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _weight_name(model: Any, layer: Any) -> str:
    names = [name for name, one in model.named_modules() if one is layer]
    return checkpoint_name(f"{names[0]}.weight") if names else ""


def head_name(model: Any) -> str:
    """Returns the name of a head that is in the checkpoint as the embeddings, or an empty one."""
    base = _base(model)
    head = base.get_output_embeddings()
    return _weight_name(model, head) if base.config.tie_word_embeddings and head else ""


def _inactive_copies(model: Any) -> set[int]:
    """Returns the parameters of adapters that are not active: they are not the policy."""
    if not hasattr(model, "peft_config"):
        return set()
    inactive = set(model.peft_config) - set(model.active_adapters)
    return {
        id(one)
        for name, one in model.named_parameters()
        if any(f".{adapter}." in f"{name}." for adapter in inactive)
    }
