"""Blocks of text of others: folded, broken for a terminal, and never without a margin."""

import io
import os
import pty
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import get_character_cell_size

from prorl_service.cli.screen import FOLD_CHARS, FOLD_LINES, TAIL_LINES, Screen, folded, wrapped

MARGIN = re.compile(r"( {4}output| {10}) \| ")
anything = st.text(st.characters(exclude_categories=[]))


@given(anything, st.booleans())
def test_each_line_of_a_block_has_a_margin(text: str, full: bool) -> None:
    file = io.StringIO()
    Screen(file, full=full).block("output", text, fold=True)
    lines = file.getvalue().split("\n")
    assert lines.pop() == ""
    assert all(MARGIN.match(line) for line in lines)
    assert len(file.getvalue().splitlines()) == len(lines)


@given(anything)
def test_a_terminal_gets_no_line_that_is_wider_than_it_is(text: str) -> None:
    """However it draws what some terminals draw as one character."""
    for part in wrapped(text.replace("\n", " "), width=10):
        assert sum(map(get_character_cell_size, part)) <= 10 or len(part) == 1


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("", [""]),
        ("0123456789", ["0123456789"]),
        ("0123456789a", ["0123456789", "a"]),
        ("01234 6789a b", ["01234", "6789a b"]),
        ("012345678 a", ["012345678", "a"]),
        ("0123456789 a", ["0123456789", "a"]),
        ("          x", ["         ", "x"]),
        ("\tab\tc", ["    ab  c"]),
        ("世界世界世界", ["世界世界世", "界"]),
        ("👩\u200d💻" * 2 + "x", ["👩\u200d💻" * 2, "x"]),
    ],
)
def test_where_a_line_is_broken(line: str, parts: list[str]) -> None:
    assert list(wrapped(line, width=10)) == parts


@given(st.text(st.sampled_from("ab 界"), max_size=60))
def test_nothing_but_spaces_is_lost_at_breaks(line: str) -> None:
    assert "".join(wrapped(line, width=7)).replace(" ", "") == line.replace(" ", "")


def test_a_long_block_keeps_its_beginning_and_its_end() -> None:
    lines = [str(number) for number in range(FOLD_LINES + 1)]
    kept = folded(lines)
    assert kept[-TAIL_LINES:] == lines[-TAIL_LINES:]
    assert kept[: FOLD_LINES - TAIL_LINES] == lines[: FOLD_LINES - TAIL_LINES]
    assert kept[FOLD_LINES - TAIL_LINES] == "[... 1 lines left out; --full shows them ...]"
    assert folded(lines[:-1]) == lines[:-1]
    [cut] = folded(["x" * (FOLD_CHARS + 5)])
    assert cut == "x" * FOLD_CHARS + " [... 5 characters left out; --full shows them ...]"


def test_a_disk_that_is_full_is_not_the_rollouts_fault() -> None:
    asked = []
    with open("/dev/full", "w") as full:
        screen = Screen(full, on_hang_up=lambda: asked.append(True))
        screen.line("anything")
        screen.block("output", "more")
    assert asked == [True]


def test_colours_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31m" in on_terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in on_terminal()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = io.StringIO()
    Screen(file).block("output", "red", "red")
    assert "\x1b" not in file.getvalue()


def on_terminal() -> str:
    reading, writing = pty.openpty()
    with open(writing, "w") as file:
        Screen(file).block("output", "red", "red")
        written = os.read(reading, 4096)
    os.close(reading)
    return written.decode()
