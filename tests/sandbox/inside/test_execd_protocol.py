import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.sandbox.guest.execd.protocol import (
    MAX_HEADER_BYTES,
    FrameDecoder,
    ProtocolError,
    encode,
)

pytestmark = pytest.mark.unprivileged

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
frames = st.lists(st.tuples(st.dictionaries(st.text(), json_values), st.binary(max_size=300)))


@pytest.mark.slow
@given(frames, st.lists(st.integers(1, 64), min_size=1))
def test_any_frames_survive_any_chopping(
    sent: list[tuple[dict[str, object], bytes]], sizes: list[int]
) -> None:
    stream = b"".join(encode(header, payload) for header, payload in sent)
    decoder = FrameDecoder(max_payload_bytes=300)
    received = []
    while stream:
        size = sizes[len(stream) % len(sizes)]
        received += list(decoder.feed(stream[:size]))
        stream = stream[size:]
    assert received == sent


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_buffered(garbage: bytes) -> None:
    try:
        for header, payload in FrameDecoder(max_payload_bytes=100).feed(garbage):
            assert isinstance(header, dict)
            assert len(payload) <= 100
    except ProtocolError:
        pass


@pytest.mark.parametrize("header", [b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_a_header_that_is_no_object_is_refused(header: bytes) -> None:
    frame = len(header).to_bytes(4, "big") + bytes(4) + header
    with pytest.raises(ProtocolError):
        list(FrameDecoder(max_payload_bytes=0).feed(frame))


def test_oversized_frames_are_refused_before_they_are_buffered() -> None:
    with pytest.raises(ProtocolError, match="too large"):
        list(FrameDecoder(max_payload_bytes=10).feed(encode({}, b"x" * 11)[:8]))
    with pytest.raises(ProtocolError, match="too large"):
        list(FrameDecoder(max_payload_bytes=10).feed(b"\xff" * 8))


def test_a_header_that_is_too_large_is_not_sent() -> None:
    too_long = "x" * (MAX_HEADER_BYTES - len(json.dumps({"x": ""}, separators=(",", ":"))) + 1)
    with pytest.raises(ProtocolError):
        encode({"x": too_long})
