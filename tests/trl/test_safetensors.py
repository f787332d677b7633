import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from safetensors.torch import load, load_file
from transformers import AutoModelForCausalLM

from prorl_trl import weights
from prorl_trl.weights import PolicyWeights, SafetensorsFile, checkpoint_names, full_weights, save

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4)


@given(shapes=SHAPES, dtype=st.sampled_from(DTYPES))
def test_pieces_are_a_safetensors_file(shapes: list[list[int]], dtype: torch.dtype) -> None:
    tensors = {f"w{index}": torch.randn(shape).to(dtype) for index, shape in enumerate(shapes)}
    loaded = load(b"".join(SafetensorsFile(PolicyWeights(tensors))))
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


@given(shapes=SHAPES, trained=st.sampled_from(DTYPES), served=st.sampled_from(DTYPES))
def test_weights_are_cast_on_the_way_out(
    shapes: list[list[int]], trained: torch.dtype, served: torch.dtype
) -> None:
    tensors = {f"w{index}": torch.randn(shape).to(trained) for index, shape in enumerate(shapes)}
    loaded = load(b"".join(SafetensorsFile(PolicyWeights(tensors), served)))
    assert all(torch.equal(loaded[name], tensors[name].to(served)) for name in tensors)


def test_large_and_transposed_weights_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PIECE_BYTES", 64)
    tensor = torch.randn(32, 33).T
    pieces = SafetensorsFile(PolicyWeights({"w": torch.nn.Parameter(tensor)}))
    assert max(map(len, list(pieces)[1:])) == 64
    assert torch.equal(load(b"".join(pieces))["w"], tensor)


def test_weights_that_engines_do_not_load_are_refused() -> None:
    with pytest.raises(TypeError, match=r"'w' is torch\.int8"):
        SafetensorsFile(PolicyWeights({"w": torch.zeros(2, dtype=torch.int8)}))


def test_names_are_those_of_the_checkpoint() -> None:
    names = [
        "_orig_mod.base_model.model.model.layers.0.q_proj.base_layer.weight",
        "_orig_mod.base_model.model.model.layers.0.q_proj.lora_A.default.weight",
        "base_model.model.lm_head.original_module.weight",
        "base_model.model.lm_head.modules_to_save.default.weight",
        "model.layers.0._checkpoint_wrapped_module.norm.weight",
    ]
    assert list(checkpoint_names(dict.fromkeys(names, torch.zeros(1)))) == [
        "model.layers.0.q_proj.weight",
        "lm_head.weight",
        "model.layers.0.norm.weight",
    ]


def test_newest_two_versions_are_kept(tmp_path: Path) -> None:
    for version in range(4):
        file = SafetensorsFile(PolicyWeights({"w": torch.full((2,), float(version))}))
        path = save(file, tmp_path, version)
        os.utime(path, (version, version))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["version-2", "version-3"]
    assert load_file(path / "model.safetensors")["w"].tolist() == [3.0, 3.0]


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options", [{}, {"use_dora": True}, {"use_rslora": True}], ids=["lora", "dora", "rslora"]
)
def test_adapters_are_merged_into_what_is_sent_and_the_base_stays_as_it_is(
    policy: Path, dtype: torch.dtype, options: dict[str, bool]
) -> None:
    """To the bit, after any number of updates."""
    config = LoraConfig(
        r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False, **options
    )
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(policy, dtype=dtype), config)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    trainer = SimpleNamespace(accelerator=Accelerator(cpu=True), model=model, model_wrapped=model)
    for _ in range(3):
        with full_weights(trainer) as weights:
            sent = load(b"".join(SafetensorsFile(weights)))
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    merged = model.merge_and_unload(safe_merge=True).state_dict()
    assert sent.keys() == merged.keys() - {"lm_head.weight"}
    assert all(torch.equal(sent[name], merged[name]) for name in sent)
