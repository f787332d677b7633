"""LoRA adapters as the plug-in for SGLang completes them."""

import json

import pytest
import torch

from prorl_sglang.adapters import completed, rescaled

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
