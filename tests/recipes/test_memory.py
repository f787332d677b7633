"""Estimates of memory: parameters by a model's configuration, and what a run shows of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from prorl_service.inference.reference_engine.tiny import build_tiny_model
from recipes.common.entry import composition
from recipes.common.settings import Training, settings_of
from recipes.common.training.memory import SHAPES, lines, shape_of

QWEN3: dict[str, dict[str, Any]] = {
    "qwen3_4b": {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": True,
    },
    "qwen3_8b": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    "qwen3_14b": {
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
    },
}
"""Keys in which the published configurations differ."""
COMMON = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128}


@pytest.mark.parametrize("name", QWEN3)
def test_published_models_have_the_parameters_that_the_formula_gives(name: str) -> None:
    shape = shape_of(COMMON | QWEN3[name])
    assert shape is not None
    assert shape.parameters == pytest.approx(SHAPES[name].parameters, rel=0.002)
    assert (shape.layers, shape.token_kb) == (SHAPES[name].layers, SHAPES[name].token_kb)


def test_a_model_here_has_them_too(tmp_path: Path) -> None:
    build_tiny_model(tmp_path)
    shape = shape_of(json.loads((tmp_path / "config.json").read_text()))
    weights = load_file(tmp_path / "model.safetensors")
    sizes = [one.numel() for name, one in weights.items() if "norm" not in name]
    assert shape is not None
    assert shape.parameters == sum(sizes)


def test_a_mixture_of_experts_is_not_estimated() -> None:
    assert shape_of({**COMMON, **QWEN3["qwen3_8b"], "num_experts": 8}) is None


def estimate(*overrides: str) -> str:
    config = composition("math_code_train", ["task=math", "model=qwen3_8b", *overrides])
    return "\n".join(lines(settings_of(Training, config)))


def test_a_run_shows_what_its_devices_hold() -> None:
    verl, trl = estimate("trainer=verl"), estimate("trainer=trl")
    # 16 bytes for each of 8.19e9 parameters, on eight GPUs.
    assert "131.0 GB" in verl
    assert "16.4 GB a GPU" in verl
    assert "131.0 GB of weights, gradients and moments on each GPU" in trl
    # Two bytes a parameter on two GPUs; 147 kB a token.
    assert "engine of 2 GPUs: 8.2 GB of weights on each" in verl
    assert "32.8 GB of weights under the adapter" in estimate(
        "trainer=trl", "algorithm.lora_rank=8"
    )
    assert "at most 2048 MB each" in estimate("model=tiny", "trainer=trl")
