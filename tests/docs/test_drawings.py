"""Drawings and the recording are those of their code, and show what is so."""

import re
from html import unescape
from itertools import pairwise

import pytest

from documentation.drawings import states, tokens
from documentation.drawings.__main__ import DIRECTORY, DRAWINGS
from documentation.drawings.svg import DARK, LIGHT
from documentation.recording import __main__ as recording
from documentation.recording import animation, record
from documentation.recording.screen import Terminal
from prorl_service.schemas import LEGAL_MOVES
from prorl_service.schemas.rollouts import NOT_SAMPLED

SIZE = re.compile(r"font-size:(\d+)px")


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawings_are_up_to_date(name: str) -> None:
    text = (DIRECTORY / name).read_text(encoding="utf-8")
    assert text == DRAWINGS[name]().svg(), "run python -m documentation.drawings"
    assert min(map(int, SIZE.findall(text))) >= 12
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_both_schemes_have_all_colours() -> None:
    assert set(LIGHT) == set(DARK)


def test_the_states_are_drawn_with_all_legal_moves_and_no_others() -> None:
    legal = {(state, move) for state, moves in LEGAL_MOVES.items() for move in moves}
    assert states.moves() == legal


def test_a_token_that_was_not_sampled_is_drawn_as_segments_have_it() -> None:
    for token in tokens.TOKENS:
        if token.version == NOT_SAMPLED:
            assert token.cells[2:] == ("0", "0.00", "-1")
    versions = [one.version for one in tokens.TOKENS if one.version not in (None, NOT_SAMPLED)]
    assert all(before <= after for before, after in pairwise(versions) if before and after)


def test_the_picture_of_the_demo_is_that_of_its_recording() -> None:
    text = recording.PICTURE.read_text(encoding="utf-8")
    assert text == recording.picture(), "run python -m documentation.recording --draw"
    assert len(text) < 1_000_000
    printed = record.read(recording.CAST)
    terminal = Terminal(printed.columns)
    for _, part in printed.events:
        terminal.feed(part)
    shown = [unescape(one) for one in re.findall(r"<text[^>]*>([^<]*)</text>", text)]
    assert {line for line in terminal.screen() if line} <= set(shown)


def test_a_bar_is_written_over_and_a_long_line_goes_on_in_the_next() -> None:
    terminal = Terminal(columns=8)
    terminal.feed("\rbar: 1\n\rsecond\x1b[A\rbar: 22\n\n\r0123456789")
    assert terminal.screen() == ("bar: 22", "second", "01234567", "89")
    with pytest.raises(ValueError, match="not known"):
        terminal.feed("\x1b[31mred")


def test_a_line_of_the_animation_has_each_of_its_contents_once() -> None:
    shown = [(0.0, ("a",)), (1.0, ("a", "b")), (2.0, ("c", "b", ""))]
    assert animation.strips(shown) == [[(0.0, "a"), (2.0, "c")], [(0.0, ""), (1.0, "b")]]
