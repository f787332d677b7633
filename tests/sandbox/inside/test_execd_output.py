import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.sandbox.guest.execd.output import HeadTail

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
