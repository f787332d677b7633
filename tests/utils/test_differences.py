"""Differences of files: exact for any bits, and refused where they are broken."""

import io
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.utils import differences
from prorl_service.utils.differences import BLOCK_BYTES, BrokenDifference

BF16 = [0x7FC0, 0xFFC1, 0x8000, 0x0000, 0x7F80, 0xFF80, 0x0001, 0x3F80, 0x3F81]
"""Bits of NaN, another NaN, -0.0, 0.0, infinities, a subnormal, and two neighbours."""
PAIRS = st.integers(0, 300).flatmap(
    lambda size: st.tuples(
        st.binary(min_size=size, max_size=size), st.binary(min_size=size, max_size=size)
    )
)


def made(base: bytes, new: bytes) -> bytes | None:
    """Returns their difference; None if `write` makes none."""
    with TemporaryDirectory() as directory:
        paths = [Path(directory, name) for name in ("base", "new", "difference")]
        paths[0].write_bytes(base)
        paths[1].write_bytes(new)
        digest = differences.write(*paths)
        if digest is None:
            return None
        assert digest == sha256(new).hexdigest()
        return paths[2].read_bytes()


def applied(base: bytes, difference: bytes) -> bytes:
    with TemporaryDirectory() as directory:
        path = Path(directory, "base")
        path.write_bytes(base)
        target = io.BytesIO()
        with path.open("rb") as file:
            digest = differences.apply(file, io.BytesIO(difference), target)
        assert digest == sha256(target.getvalue()).hexdigest()
        return target.getvalue()


@given(PAIRS)
def test_any_bytes_come_out_as_they_went_in(pair: tuple[bytes, bytes]) -> None:
    padding = bytes(1000)  # so that the difference is smaller
    base, new = (padding + one for one in pair)
    difference = made(base, new)
    assert difference is not None
    assert applied(base, difference) == new


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(BF16), st.sampled_from(BF16)), max_size=200), st.data())
def test_tensors_in_bf16_come_out_bit_for_bit(pairs: list[tuple[int, int]], data: Any) -> None:
    elements = BLOCK_BYTES // 2 + 77  # two blocks
    base = np.full(elements, 0x3F80, np.uint16)
    new = base.copy()
    for before, after in pairs:
        at = data.draw(st.integers(0, elements - 1))
        base[at], new[at] = before, after
    difference = made(base.tobytes(), new.tobytes())
    assert difference is not None
    assert applied(base.tobytes(), difference) == new.tobytes()


def test_a_block_that_has_not_changed_is_left_out() -> None:
    base = np.random.default_rng(0).bytes(3 * BLOCK_BYTES)
    new = base[:-1] + bytes([base[-1] ^ 1])
    same, changed = made(base, base), made(base, new)
    assert same == sha256(base).digest()
    assert changed is not None
    assert len(changed) < BLOCK_BYTES // 200


@pytest.mark.parametrize("new", [bytes(99), b"", np.random.default_rng(0).bytes(100)])
def test_there_is_no_difference_of_other_sizes_or_above_the_file_itself(new: bytes) -> None:
    assert made(bytes(100), new) is None


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_broken_difference_never_leads_to_other_bytes(at: int, bits: int) -> None:
    rng = np.random.default_rng(0)
    base = bytes(2 * BLOCK_BYTES)
    new = bytearray(base)
    new[5:50], new[-50:] = rng.bytes(45), rng.bytes(50)
    difference = made(base, bytes(new))
    assert difference is not None
    broken = bytearray(difference)
    broken[at % len(broken)] ^= bits
    for wrong in (bytes(broken), difference[: at % len(broken)], difference + difference[32:]):
        with suppress(BrokenDifference):  # nothing depends on the checksum of zlib
            assert applied(base, wrong) == new


def test_another_base_is_refused() -> None:
    base = bytes(BLOCK_BYTES)
    difference = made(base, base[:-1] + b"1")
    assert difference is not None
    for other in (b"2" + base[1:], base[1:], base + b"1"):
        with pytest.raises(BrokenDifference):
            applied(other, difference)
