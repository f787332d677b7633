import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from safetensors.torch import load, load_file
from transformers import AutoModelForCausalLM

from prorl_trl import safetensors_file
from prorl_trl.safetensors_file import SafetensorsFile
from prorl_trl.weights import PolicyWeights, checkpoint_names, policy_weights, save

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4)


@given(shapes=SHAPES, dtype=st.sampled_from(DTYPES))
def test_pieces_are_a_safetensors_file(shapes: list[list[int]], dtype: torch.dtype) -> None:
    tensors = {f"w{index}": torch.randn(shape).to(dtype) for index, shape in enumerate(shapes)}
    loaded = load(b"".join(SafetensorsFile(PolicyWeights(tensors))))
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


@given(shapes=SHAPES, trained=st.sampled_from(DTYPES), served=st.sampled_from(DTYPES))
def test_matrices_are_cast_to_a_narrower_type_on_the_way_out(
    shapes: list[list[int]], trained: torch.dtype, served: torch.dtype
) -> None:
    tensors = {f"w{index}": torch.randn(shape).to(trained) for index, shape in enumerate(shapes)}
    loaded = load(b"".join(SafetensorsFile(PolicyWeights(tensors), served)))
    is_narrower = served.itemsize < trained.itemsize
    for name, tensor in tensors.items():
        expected = tensor.to(served) if is_narrower and tensor.ndim > 1 else tensor
        assert loaded[name].dtype == expected.dtype
        assert torch.equal(loaded[name], expected)


@given(shapes=SHAPES, elements=st.integers(1, 30))
def test_a_file_written_by_several_threads_equals_what_is_sent(
    shapes: list[list[int]], elements: int
) -> None:
    tensors = {f"w{index}": torch.randn(shape) for index, shape in enumerate(shapes)}
    file = SafetensorsFile(PolicyWeights(tensors), torch.bfloat16, {"note": "kept"})
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as directory:
        patch.setattr(safetensors_file, "PIECE_ELEMENTS", elements)
        path = Path(directory) / "file"
        file.write(path)
        assert path.read_bytes() == b"".join(file)
        assert path.stat().st_size == file.size


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    class Broken:
        tensors: ClassVar = {"good": torch.zeros(4, 4), "bad": torch.zeros(4, 4)}

        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            yield "good", self.tensors["good"]
            raise RuntimeError("no memory for it")

    with pytest.raises(RuntimeError, match="no memory"):
        SafetensorsFile(Broken()).write(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_large_and_transposed_weights_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "PIECE_ELEMENTS", 16)
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


def test_the_newest_two_versions_are_kept(tmp_path: Path) -> None:
    for version in range(4):
        file = SafetensorsFile(PolicyWeights({"w": torch.full((2,), float(version))}))
        path = save(file, tmp_path, version)
        os.utime(path, (version, version))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["version-2", "version-3"]
    assert load_file(path / "model.safetensors")["w"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options", [{}, {"use_dora": True}, {"use_rslora": True}], ids=["lora", "dora", "rslora"]
)
def test_adapters_are_merged_into_sent_weights_and_the_base_stays_as_is(
    policy: Path, dtype: torch.dtype, options: dict[str, bool]
) -> None:
    """Both hold to the bit, after any number of updates."""
    config = LoraConfig(
        r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False, **options
    )
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(policy, dtype=dtype), config)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    trainer = SimpleNamespace(accelerator=Accelerator(cpu=True), model=model, model_wrapped=model)
    for _ in range(3):
        sent = load(b"".join(SafetensorsFile(policy_weights(trainer))))
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    merged = model.merge_and_unload(safe_merge=True).state_dict()
    assert sent.keys() == merged.keys() - {"lm_head.weight"}
    assert all(torch.equal(sent[name], merged[name]) for name in sent)
