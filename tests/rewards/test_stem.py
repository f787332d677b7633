import logging
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_service.rewards.stem import (
    chosen_letter,
    is_words,
    normal_text,
    score_value,
)

TABLES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text())
OPTIONS = {"A": "nucleus", "B": "C. elegans", "C": "The cell", "D": "x^2", "E": "nucleus"}


@pytest.mark.parametrize(
    ("said", "letter"),
    TABLES["options"],
)
def test_an_option_is_named_by_letter_or_text(said: str, letter: str) -> None:
    assert chosen_letter(f"I think: \\boxed{{{said}}}", OPTIONS, None) == (letter or None)


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("Answer: A\nNo. Answer: B", "B"),  # the last match
        (r"Answer: B. Or \boxed{C}?", "B"),  # before any box
        (r"Answer: F, hm, \boxed{C}", "C"),  # no option: the box
        (r"\boxed{C}", "C"),
        ("Answer B", None),
    ],
)
def test_a_rows_own_pattern_comes_first(reply: str, letter: str | None) -> None:
    assert chosen_letter(reply, OPTIONS, r"Answer: ([A-Z])") == letter


def test_a_pattern_may_lack_a_group_or_match_an_empty_one() -> None:
    assert chosen_letter("D!", OPTIONS, r"[A-Z](?=!)") == "D"
    assert chosen_letter(r"say: nothing \boxed{D}", OPTIONS, r"say: ([A-Z])?") == "D"


def test_the_text_of_an_option_goes_before_the_word_option() -> None:
    options = {"A": "Option B", "B": "something else"}
    assert chosen_letter(r"\boxed{Option B}", options, None) == "A"
    assert chosen_letter(r"\boxed{Option A}", options, None) == "A"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\text{Mitochondria}", "the mitochondria."),
        (r"\mathrm{DNA polymerase}", "DNA  Polymerase"),
        (r"5 \, \text{m/s}", "5 m/s"),
        (r"\left( 1, 2 \right)", "( 1, 2 )"),
        (r"$\dfrac{1}{2}$", r"\frac{1}{2}"),
        ("Caf\u00e9", "cafe\u0301"),
    ],
)
def test_equivalent_texts_are_the_same(one: str, other: str) -> None:
    assert normal_text(one) == normal_text(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("Co", "CO"), ("5\u00b2", "52"), ("no", "on"), ("increases", "decreases"), ("pH", "PH")],
)
def test_different_texts_are_not_the_same(one: str, other: str) -> None:
    assert normal_text(one) != normal_text(other)


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Silences math-verify's warning that its time limits are off, as the pool's workers do."""
    logger = logging.getLogger("math_verify")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("gold", "answer", "score"),
    TABLES["values"],
)
def test_values_are_scored_by_number_unit_and_formula(gold: str, answer: str, score: float) -> None:
    assert score_value(answer, gold) == score


@pytest.mark.parametrize("text", ["ATGC", "NaCl", "silver", r"\text{even}", "kT", "carbon-14", ""])
def test_words_count_as_words(text: str) -> None:
    assert is_words(text)


@pytest.mark.parametrize("text", ["mc^2", r"mg\sin\theta", "kT/q", "5", r"5 \text{ kg}", "x"])
def test_expressions_do_not_count_as_words(text: str) -> None:
    assert not is_words(text)
