"""Parts of the execution server without a sandbox: output, frames, and its imports, since every
sandbox is a fork of the process that loaded them."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import ptyprocess
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.sandbox.guest import execd
from prorl_service.sandbox.guest.execd.output import HeadTail
from prorl_service.sandbox.guest.execd.protocol import (
    MAX_HEADER_BYTES,
    FrameDecoder,
    ProtocolError,
    encode,
)

pytestmark = pytest.mark.unprivileged


def kept(chunks: list[bytes], limit_bytes: int) -> tuple[str, int]:
    output = HeadTail(limit_bytes)
    for chunk in chunks:
        output.append(chunk)
    return output.text(), output.dropped_bytes


ascii_bytes = st.text(st.characters(min_codepoint=32, max_codepoint=126)).map(str.encode)


@given(st.lists(ascii_bytes), st.integers(0, 40))
def test_head_and_tail_are_kept_and_the_rest_is_counted(
    chunks: list[bytes], limit_bytes: int
) -> None:
    whole = b"".join(chunks).decode()
    text, dropped = kept(chunks, limit_bytes)
    assert dropped == max(0, len(whole) - limit_bytes)
    if not dropped:
        assert text == whole
        return
    head, tail = whole[: limit_bytes // 2], whole[len(whole) - (limit_bytes - limit_bytes // 2) :]
    line_end = "\n" if head else ""
    assert text == f"{head}{line_end}[... {dropped} bytes omitted ...]\n{tail}"


@given(st.lists(st.binary()), st.integers(0, 40))
def test_memory_is_bounded_and_any_bytes_become_text(chunks: list[bytes], limit_bytes: int) -> None:
    text, dropped = kept(chunks, limit_bytes)
    assert dropped == max(0, sum(map(len, chunks)) - limit_bytes)
    assert len(text.encode()) <= 3 * limit_bytes + 60


def test_the_gap_is_a_line_of_its_own() -> None:
    assert kept([b"ab\ncdefgh\nij"], 6)[0] == "ab\n[... 6 bytes omitted ...]\n\nij"


def test_line_ends_are_unix_even_across_chunks() -> None:
    assert kept([b"a\r", b"\nb\r\n", b"c\rd"], 100)[0] == "a\nb\nc\rd"


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


SOURCES = sorted(Path(execd.__path__[0]).glob("*.py"))
LARGE = {
    "asyncio",
    "concurrent",
    "dataclasses",
    "inspect",
    "logging",
    "ssl",
    "subprocess",
    "urllib",
}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_execd_imports_only_stdlib_and_ptyprocess_and_only_at_the_top(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [] if node.level else [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        assert node in tree.body
        assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names, "ptyprocess"}


@pytest.mark.processes
def test_execd_loads_no_large_modules() -> None:
    paths = [str(Path(package.__path__[0]).parent) for package in (execd, ptyprocess)]
    code = f"import sys; sys.path += {paths}; import execd.zygote; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-I", "-S", "-c", code], text=True)
    assert "execd.server" in loaded.split()
    assert not LARGE & {*loaded.split()}
