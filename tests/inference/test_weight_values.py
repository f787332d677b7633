"""Values and headers of safetensors files, as they are checked before any engine is asked."""

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from prorl_service.errors import WeightsRejected
from prorl_service.inference import tensor_file
from prorl_service.inference.sources import source_at
from prorl_service.testing import StubEngine, safetensors
from tests.inference.pools import kept, pool_of

FLOATS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}
"""Types with NaN or infinity, and integers of their size."""


def checked(file: bytes, cuts: list[int]) -> tensor_file.Header:
    check = tensor_file.TensorCheck()
    ends = sorted(min(cut, len(file)) for cut in cuts)
    for start, end in zip([0, *ends], [*ends, len(file)], strict=True):
        check.add(file[start:end])
    return check.end()


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Draws tensors of any bits, most of them finite."""
    found = {}
    for name in draw(st.sets(st.sampled_from("abcd"), min_size=1)):
        dtype = draw(st.sampled_from(list(FLOATS)))
        bits, limits = FLOATS[dtype], torch.iinfo(FLOATS[dtype])
        usual = st.integers(0, limits.max // 4)
        numbers = st.one_of(usual, st.integers(limits.min, limits.max))
        values = draw(st.lists(numbers, max_size=6))
        found[name] = torch.tensor(values, dtype=bits).view(dtype)
    return found


@given(tensors(), st.lists(st.integers(0, 600), max_size=6))
def test_exactly_nan_and_infinity_are_refused_in_any_type_and_however_the_file_is_cut(
    given_tensors: dict[str, torch.Tensor], cuts: list[int]
) -> None:
    broken = {
        name for name, tensor in given_tensors.items() if not tensor.double().isfinite().all()
    }
    file = save(given_tensors)
    if not broken:
        assert checked(file, cuts).shapes == {k: list(v.shape) for k, v in given_tensors.items()}
        return
    with pytest.raises(WeightsRejected, match="holds NaN or infinity") as caught:
        checked(file, cuts)
    assert any(f"'{name}'" in caught.value.message for name in broken)


@pytest.mark.slow
@given(st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 299_999))
def test_one_value_in_many_is_found_beside_large_ones(value: float, place: int) -> None:
    weights = torch.full((300_000,), -3e38, dtype=torch.bfloat16)
    assert checked(save({"w": weights}), [])
    weights[place] = value
    with pytest.raises(WeightsRejected, match="'w' holds NaN or infinity"):
        checked(save({"w": weights}), [100_000, 200_001])


def _headers() -> Iterator[dict[str, object]]:
    """Yields headers that do not fit 8 bytes of values."""
    good = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for wrong in (
        {"dtype": "F99"},
        {"dtype": 7},
        {"shape": [3]},
        {"shape": [-1, -2]},
        {"shape": "2"},
        {"shape": [2.0]},
        {"data_offsets": [0, 7]},
        {"data_offsets": [1, 9]},
        {"data_offsets": [0.0, 8.0]},
        {"data_offsets": [0]},
        {"data_offsets": None},
    ):
        yield {"w": {**good, **wrong}}
    yield {"w": good, "v": good}
    yield {"w": good, "v": {**good, "data_offsets": [8, 16]}}
    yield {"w": 1}
    yield {}
    yield {"w": good, "__metadata__": []}


@pytest.mark.parametrize("header", list(_headers()), ids=str)
def test_headers_that_do_not_fit_are_refused_in_one_line(header: dict[str, object]) -> None:
    text = orjson.dumps(header)
    with pytest.raises(WeightsRejected, match="not a complete safetensors file") as caught:
        checked(struct.pack("<Q", len(text)) + text + bytes(8), [])
    assert "\n" not in caught.value.message


@given(st.binary(max_size=64) | st.binary().map(lambda end: safetensors(b"abc") + end), st.data())
def test_what_is_no_whole_file_is_refused(content: bytes, data: st.DataObject) -> None:
    whole = safetensors(b"abc")
    cut = data.draw(st.integers(0, len(whole) - 1))
    for broken in (content, whole[:cut]):
        if broken != whole:
            with pytest.raises(WeightsRejected, match="not a complete safetensors file"):
                checked(broken, [20])


async def one_piece(content: bytes):  # type: ignore[no-untyped-def]
    yield content


async def test_no_engine_is_asked_about_weights_with_nan(
    engine: StubEngine, tmp_path: Path
) -> None:
    good, bad = (save({"w": torch.tensor([1.0, end])}) for end in (2.0, math.nan))
    async with pool_of([engine], tmp_path / "spool") as pool:
        await pool.weights.load_stream(one_piece(good))
        with pytest.raises(WeightsRejected, match="'w' holds NaN") as caught:
            await pool.weights.load_stream(one_piece(bad))
        assert (caught.value.answer_status, caught.value.retryable) == (422, False)
        assert engine.weights == good[-8:]
        assert len(kept(tmp_path / "spool")) == 1
        assert pool.policy_version == 1


@pytest.mark.parametrize("name", ["model.safetensors", "."])
def test_files_and_directories_by_path_are_checked(tmp_path: Path, name: str) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(save({"w": torch.ones(2)}))
    source_at(tmp_path / name)
    file.write_bytes(save({"w": torch.tensor([1.0, math.inf])}))
    with pytest.raises(WeightsRejected, match=r"model.safetensors: .*'w' holds NaN or infinity"):
        source_at(tmp_path / name)
    file.write_bytes(b"cut")
    with pytest.raises(WeightsRejected, match="not a complete safetensors file"):
        source_at(tmp_path / name)
