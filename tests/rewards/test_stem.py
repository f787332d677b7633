import logging
from collections.abc import Iterator

import pytest

from prorl_service.rewards.stem import (
    chosen_letter,
    is_words,
    normal_text,
    score_choice,
    score_value,
)

OPTIONS = {"A": "nucleus", "B": "C. elegans", "C": "The cell", "D": "x^2", "E": "nucleus"}


@pytest.mark.parametrize(
    ("said", "letter"),
    [
        ("C", "C"),
        ("c", "C"),
        ("(C)", "C"),
        ("C.", "C"),
        ("$C$", "C"),
        (r"\text{C}", "C"),
        (r"\mathbf{\text{C}}", "C"),
        ("C: the cell", "C"),
        ("(C) cell", "C"),
        ("C) something else", "C"),
        ("the cell", "C"),
        (r"\text{The cell}.", "C"),
        ("C. elegans", "B"),  # an option's text goes before a letter with a full stop
        ("D: $x^2$", "D"),
        ("nucleus", None),  # the text of two options
        ("A: nucleus", "A"),
        ("A: the cell", None),  # the letter of one, the text of another
        ("AB", None),
        ("A and B", None),
        ("A or C", None),
        ("F", None),
        ("F: the cell", None),
        ("", None),
        ("cell wall", None),
        ("Option C", "C"),
        (r"\text{Option C}", "C"),
        ("option c.", "C"),
        ("(Option C)", "C"),
        ("Option (C)", "C"),
        ("Answer: C", "C"),
        ("The answer is C", "C"),
        ("Answer: option C", "C"),
        ("Answer: C: the cell", "C"),
        ("Choice [C]", "C"),
        ("[C]", "C"),
        ("[ C ]", "C"),
        ("Answer: the cell", "C"),
        ("Option A: the cell", None),
        ("Option A or C", None),
        ("Option F", None),
        ("Option", None),
        ("OptionC", None),
    ],
)
def test_an_option_is_named_by_letter_or_text(said: str, letter: str | None) -> None:
    assert chosen_letter(f"I think: \\boxed{{{said}}}", OPTIONS, None) == letter


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


def test_only_the_right_option_in_a_box_scores() -> None:
    assert score_choice(r"\boxed{C}", "C", OPTIONS, None) == 1.0
    assert score_choice(r"\boxed{D}", "C", OPTIONS, None) == 0.0
    assert score_choice("C", "C", OPTIONS, None) == 0.0


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
    [
        ("5", "5.0", 1.0),
        ("1,000", "1000", 1.0),
        ("10000", "10{,}000", 1.0),
        ("-5", "5", 0.0),
        ("3", "3.1", 0.0),
        (r"\frac{1}{3}", "0.333333", 1.0),
        (r"\frac{1}{3}", "0.333", 0.0),
        ("1.6e-19", r"1.60 \times 10^{-19}", 1.0),
        ("1.6e-19", r"2.6 \times 10^{-19}", 0.0),  # math-verify: the same
        ("1.6e-19", r"\frac{1}{10^{30}}", 0.0),
        ("10^5", "1e5", 1.0),
        ("1e400", "1e500", 0.0),
        (r"3 \times 10^8 \text{ m/s}", r"3.00 \cdot 10^{8}\,\mathrm{m/s}", 1.0),
        (r"5 \text{ m}", r"5 \text{ km}", 0.0),  # math-verify: the same
        (r"5 \text{ m}", "5", 1.0),
        ("5", r"5 \text{ m}", 1.0),
        ("2 kg", "2.0 kg", 1.0),
        ("2 kg", "2 g", 0.0),
        ("5x", "5", 0.0),
        ("mc^2", "E = mc^2", 1.0),
        (r"\frac{1}{2}mv^2", r"\frac{mv^2}{2}", 1.0),
        ("2^{10}", "1024", 1.0),
        ("no", "on", 0.0),  # math-verify calls these the same, and the next
        ("ATGC", "CGTA", 0.0),
        ("CO", "OC", 0.0),
        ("5", "5 or 6", 0.0),
        ("5", "4=5", 0.0),
        ("5", "2+3=5", 1.0),
        ("5", "=5", 1.0),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}", 0.0),
        (r"1.6 \times 10^{-19}", r"\frac{16}{10^{20}}", 1.0),
        ("}{", "x", 0.0),
    ],
)
def test_values_are_scored_by_number_unit_and_formula(gold: str, answer: str, score: float) -> None:
    assert score_value(answer, gold) == score


@pytest.mark.parametrize("text", ["ATGC", "NaCl", "silver", r"\text{even}", "kT", "carbon-14", ""])
def test_words_count_as_words(text: str) -> None:
    assert is_words(text)


@pytest.mark.parametrize("text", ["mc^2", r"mg\sin\theta", "kT/q", "5", r"5 \text{ kg}", "x"])
def test_expressions_do_not_count_as_words(text: str) -> None:
    assert not is_words(text)
