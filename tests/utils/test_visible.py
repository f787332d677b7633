"""What text of others can do on a terminal once it was made visible: nothing."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.utils.visible import visible, visible_line

BIDI_CONTROLS = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
ACTIVE = {"Cc", "Cs", "Zl", "Zp"}
"""Categories of what moves the cursor, or no terminal takes."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("\x1b\x1b[0m[2J", r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),
        ("10%\r20%\r\n", "10%\\r20%\n".replace("\\r", r"\x0d")),
        ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
        ("\U000e0041\ud800", r"\U000e0041\ud800"),
        ("naïve\t世界 👩‍💻\n", "naïve\t世界 👩‍💻\n"),
        ("[bold]no markup[/bold]", "[bold]no markup[/bold]"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(st.characters(exclude_categories=[])))
def test_no_text_moves_the_cursor_or_turns_the_direction(text: str) -> None:
    for character in visible(text):
        assert character in "\n\t" or unicodedata.category(character) not in ACTIVE
        assert unicodedata.bidirectional(character) not in BIDI_CONTROLS


@given(st.text(st.characters(exclude_categories=[])), st.integers(10, 50))
def test_a_line_is_one_line_of_bounded_length(text: str, limit: int) -> None:
    line = visible_line(text, limit=limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1
    assert "\t" not in line
