"""The comparison of offered weights with the model, in plug-ins of engines."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from prorl_service.utils.checkpoint import difference, shapes_of

OWN = {"a": [2, 3], "b": [4], "lm_head.weight": [9]}


@pytest.mark.parametrize(
    ("offered", "is_head_tied", "problem"),
    [
        (OWN, False, None),
        ({"a": [2, 3], "b": [4]}, True, None),
        ({"a": [2, 3], "b": [4]}, False, "lm_head.weight is missing (1 in all)"),
        ({"b": [4]}, True, "a is missing (1 in all)"),
        (OWN | {"a": [3, 2]}, False, "a has shape [3, 2], not [2, 3]"),
        ({"fused": [6], "b": [4]}, False, None),
        ({"fused": [6], "b": [5]}, False, "b has shape [5], not [4]"),
    ],
)
def test_a_missing_or_misshapen_tensor_is_named(
    offered: dict[str, list[int]], is_head_tied: bool, problem: str | None
) -> None:
    assert difference(offered, OWN, is_head_tied=is_head_tied) == problem


def test_shapes_are_read_from_all_files(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 3)}, tmp_path / "1.safetensors", metadata={"format": "pt"})
    save_file({"b": torch.zeros(4)}, tmp_path / "2.safetensors")
    assert shapes_of(str(tmp_path), None) == {"a": [2, 3], "b": [4]}


def test_a_model_that_is_not_found_is_not_compared() -> None:
    assert shapes_of("nobody/nothing", None) == {}
    assert difference({"a": [1]}, {}, is_head_tied=False) is None
