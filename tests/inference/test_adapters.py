"""LoRA adapters: directories as the plug-in for vLLM leaves them, what the plug-in for SGLang
completes, and what the reference engine refuses without touching a weight."""

import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from prorl_sglang.adapters import completed, rescaled
from prorl_vllm.adapters import install
from tests.inference.adapters import CONFIG, make_adapter


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_an_adapter_replaces_the_previous_one(tmp_path: Path) -> None:
    directory = tmp_path / "adapter"
    for number in (1, 2):
        file = io.BytesIO(b"matrices %d" % number)
        file.read(3)  # vLLM's workers may have read some of it
        install(file, directory, f'{{"r": {number}}}')
        assert content(directory) == {
            "adapter_config.json": b'{"r": %d}' % number,
            "adapter_model.safetensors": b"matrices %d" % number,
        }
    assert directory.stat().st_mode & 0o077 == 0


def test_workers_of_one_host_may_install_concurrently(tmp_path: Path) -> None:
    directory, matrices = tmp_path / "adapter", bytes(2**20)
    with ThreadPoolExecutor(8) as workers:
        for _ in range(32):
            workers.submit(install, io.BytesIO(matrices), directory, "{}")
    assert content(directory) == {
        "adapter_config.json": b"{}",
        "adapter_model.safetensors": matrices,
    }


def test_a_write_that_fails_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "adapter").write_text("a file")
    with pytest.raises(OSError, match="adapter"):
        install(io.BytesIO(b"matrices"), tmp_path / "adapter", "{}")


SHAPES = {
    "model.layers.0.self_attn.q_proj.weight": [8, 6],
    "model.layers.0.self_attn.k_proj.weight": [4, 6],
    "model.layers.0.self_attn.v_proj.weight": [4, 6],
    "model.layers.0.self_attn.o_proj.weight": [6, 8],
    "model.layers.0.mlp.gate_proj.weight": [9, 6],
    "model.layers.0.mlp.up_proj.weight": [9, 6],
}
RANK = 2


def adapter_of(*layers: str) -> dict[str, torch.Tensor]:
    matrices = {}
    for layer in layers:
        outputs, inputs = SHAPES[f"model.layers.0.{layer}.weight"]
        name = f"base_model.model.model.layers.0.{layer}"
        matrices[f"{name}.lora_A.weight"] = torch.ones(RANK, inputs)
        matrices[f"{name}.lora_B.weight"] = torch.ones(outputs, RANK)
    return matrices


def test_layers_that_are_packed_with_adapted_ones_get_zeros() -> None:
    asked = adapter_of("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj")
    complete = completed(asked, SHAPES)
    whole = adapter_of(
        *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
        *("mlp.gate_proj", "mlp.up_proj"),
    )
    assert {name: one.shape for name, one in complete.items()} == {
        name: one.shape for name, one in whole.items()
    }
    assert all(bool(one.any()) is (name in asked) for name, one in complete.items())


def test_layers_that_the_model_lacks_are_left_out() -> None:
    asked = adapter_of("self_attn.q_proj")
    assert completed(asked, {}).keys() == asked.keys()


@pytest.mark.parametrize(("is_stabilised", "alpha"), [(True, 32), (False, 16)])
def test_the_scale_is_that_of_rank_stabilisation(is_stabilised: bool, alpha: float) -> None:
    config = {"r": 4, "lora_alpha": 16, "use_rslora": is_stabilised, "peft_type": "LORA"}
    expected = config | {"lora_alpha": alpha, "use_rslora": False}
    assert json.loads(rescaled(json.dumps(config))) == expected


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
