"""LoRA adapters that do not fit the reference engine's model: refused, and no weight is touched."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from prorl_service.inference.reference_engine.checkpoints import (
    Served,
    UnfitCheckpoint,
    WeightUpdate,
)
from prorl_service.schemas import ADAPTER_CONFIG
from tests.inference.adapters import CONFIG, make_adapter


def update(model: Path, *files: Path) -> WeightUpdate:
    update = WeightUpdate(Served(AutoModelForCausalLM.from_pretrained(model)))
    for file in files:
        update.add(file)
    update.check_complete()
    return update


@pytest.mark.parametrize(
    "config",
    ["", "[]", "{}", json.dumps({"r": 4}), json.dumps(CONFIG | {"r": 0}), '{"r": "4"}'],
)
def test_an_invalid_configuration_is_refused(tiny_model: Path, tmp_path: Path, config: str) -> None:
    file, _ = make_adapter(tiny_model, tmp_path, seed=0)
    save_file(load_file(file), file, {ADAPTER_CONFIG: config})
    with pytest.raises(UnfitCheckpoint, match="the adapter's configuration is invalid"):
        update(tiny_model, file)


@pytest.mark.parametrize(
    "spoil",
    [lambda matrix: matrix[1:], lambda matrix: matrix[0], lambda matrix: matrix[:, 1:]],
)
def test_matrices_that_do_not_fit_are_refused_by_name(
    tiny_model: Path, tmp_path: Path, spoil: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    file, _ = make_adapter(tiny_model, tmp_path, seed=0)
    matrices = load_file(file)
    name = next(one for one in matrices if ".lora_A." in one)
    save_file(
        matrices | {name: spoil(matrices[name]).contiguous()},
        file,
        {ADAPTER_CONFIG: json.dumps(CONFIG)},
    )
    layer = name.removeprefix("base_model.model.").replace(".lora_A.", ".")
    with pytest.raises(UnfitCheckpoint, match=layer):
        update(tiny_model, file)


def test_an_adapter_with_other_weights_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    file, _ = make_adapter(tiny_model, tmp_path, seed=0)
    with pytest.raises(UnfitCheckpoint, match="is not part of the adapter"):
        update(tiny_model, file, tiny_model / "model.safetensors")
