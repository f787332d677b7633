"""Verdicts on numbers: next to exact arithmetic, and next to math-verify as it is."""

import asyncio
import logging
import math
from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from math_verify import LatexExtractionConfig, parse, verify

from prorl_service.rewards.math import score_math
from prorl_service.rewards.pool import ScoringPool

pytestmark = pytest.mark.processes

Number = tuple[Fraction, str]
"""A value, and LaTeX for it."""

EXPONENTS = st.integers(0, 2100)
SMALL = st.integers(-9, 9)


@pytest.fixture(scope="module")
def pool() -> Iterator[ScoringPool]:
    scoring = ScoringPool(workers=1)
    yield scoring
    asyncio.run(scoring.close())


@pytest.fixture(scope="module")
def reference() -> Iterator[ScoringPool]:
    """Processes in which math-verify is as it is."""
    scoring = ScoringPool(workers=1)
    yield scoring
    asyncio.run(scoring.close())


def as_it_is(answer: str, gold: str) -> float:
    """Scores with math-verify alone."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    config = [LatexExtractionConfig(boxed_match_priority=0)]
    read = [
        parse(f"\\boxed{{{text}}}", config, extraction_mode="first_match", parsing_timeout=None)
        for text in (gold, answer)
    ]
    return float(verify(read[0], read[1], timeout_seconds=None))


def score(pool: ScoringPool, answer: str, gold: str) -> float:
    return asyncio.run(pool.score(score_math, 60, answer, gold))


# --- rational numbers -----------------------------------------------------------------------------


def fractions(top: int, bottom: int) -> list[Number]:
    """Returns ways of writing one fraction."""
    value = Fraction(top, bottom)
    number, inverse = value.numerator, value.denominator
    return [
        (value, f"\\frac{{{top}}}{{{bottom}}}"),
        (value, f"\\frac{{{3 * top}}}{{{3 * bottom}}}"),
        (value, f"{number}/{inverse}" if inverse > 1 else str(number)),
        (value, f"{number}\\cdot {inverse}^{{-1}}"),
        (value, f"\\frac{{{number - inverse}}}{{{inverse}}}+1"),
    ]


def powers(factor: int, exponent: int) -> list[Number]:
    """Returns ways of writing a factor by a power of two."""
    value = Fraction(factor, 2**exponent)
    return [
        (value, f"\\frac{{{factor}}}{{2^{{{exponent}}}}}"),
        (value, f"{factor}\\cdot 2^{{-{exponent}}}"),
        (value, f"\\frac{{{2 * factor}}}{{2^{{{exponent + 1}}}}}"),
        (value, f"\\frac{{{factor}-2^{{{exponent}}}}}{{2^{{{exponent}}}}}+1"),
    ]


def factorials(number: int, factor: int) -> list[Number]:
    """Returns ways of writing a factor by an inverse factorial."""
    value = Fraction(factor, math.factorial(number))
    return [
        (value, f"\\frac{{{factor}}}{{{number}!}}"),
        (value, f"\\frac{{{factor * (number + 1)}}}{{{number + 1}!}}"),
        (value, f"{factor}\\cdot ({number}!)^{{-1}}"),
    ]


FAMILIES = st.one_of(
    st.builds(fractions, st.integers(-50, 50), st.integers(1, 50)),
    st.builds(fractions, st.integers(-(10**40), 10**40), st.integers(1, 10**40)),
    st.builds(powers, SMALL, EXPONENTS),
    st.builds(factorials, EXPONENTS, SMALL),
)


@given(FAMILIES.flatmap(lambda forms: st.tuples(st.sampled_from(forms), st.sampled_from(forms))))
@settings(max_examples=150, deadline=None)
def test_a_rational_number_equals_itself_in_another_form(
    pool: ScoringPool, pair: tuple[Number, Number]
) -> None:
    (_, gold), (_, answer) = pair
    assert score(pool, answer, gold) == 1.0
    assert score(pool, f"={answer}", gold) == 1.0


@given(FAMILIES.flatmap(st.sampled_from), FAMILIES.flatmap(st.sampled_from))
@settings(max_examples=150, deadline=None)
def test_different_rational_numbers_are_different(
    pool: ScoringPool, one: Number, other: Number
) -> None:
    assert score(pool, one[1], other[1]) == float(one[0] == other[0])


@given(
    FAMILIES.flatmap(st.sampled_from),
    st.integers(1, 2000).map(lambda exponent: Fraction(1, 2**exponent)),
)
@settings(max_examples=100, deadline=None)
def test_neighbours_of_a_rational_number_are_wrong(
    pool: ScoringPool, number: Number, difference: Fraction
) -> None:
    near = number[0] + number[0] * difference if number[0] else difference
    assume(near.denominator < 10**1500)  # answers have a maximum length
    text = f"\\frac{{{near.numerator}}}{{{near.denominator}}}"
    assert score(pool, text, number[1]) == 0.0


# --- decimals -------------------------------------------------------------------------------------


def decimal(digits: int, places: int) -> Number:
    text = str(digits).rjust(places + 1, "0")
    text = f"{text[:-places]}.{text[-places:]}" if places else text
    return Fraction(digits, 10**places), text


DECIMALS = st.builds(decimal, st.integers(0, 10**7), st.integers(0, 12))


@given(DECIMALS, st.integers(-30, 30))
@settings(max_examples=100, deadline=None)
def test_a_decimal_equals_itself_in_another_form(
    pool: ScoringPool, number: Number, shift: int
) -> None:
    value, text = number
    fraction = f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
    moved = value * Fraction(10) ** shift
    assert score(pool, fraction, text) == score(pool, text, fraction) == 1.0
    shifted = f"\\frac{{{moved.numerator}}}{{{moved.denominator}}}"
    assert score(pool, f"{text}\\times 10^{{{shift}}}", shifted) == 1.0


@given(DECIMALS, DECIMALS)
@settings(max_examples=100, deadline=None)
def test_decimals_that_differ_in_their_first_six_digits_are_different(
    pool: ScoringPool, one: Number, other: Number
) -> None:
    largest = max(one[0], other[0])
    apart = abs(one[0] - other[0]) / largest if largest else Fraction(0)
    verdict = score(pool, one[1], other[1])
    if one[0] == other[0]:
        assert verdict == 1.0
    elif largest < Fraction(1, 1000):
        assert verdict == float(apart <= Fraction(1, 10**6))
    elif abs(one[0] - other[0]) > Fraction(1, 10**6):
        assert verdict == 0.0


# --- next to math-verify --------------------------------------------------------------------------

ATOMS = st.one_of(
    st.integers(0, 30).map(str),
    st.sampled_from([r"\pi", "x", "e", r"\sqrt{2}", r"\sqrt{9}", "0.5", "1.25", r"\frac{1}{3}"]),
)
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("({}+{})".format, inner, inner),
        st.builds(r"{}\cdot {}".format, inner, inner),
        st.builds(r"\frac{{{}}}{{{}}}".format, inner, inner.map(lambda text: f"{text}+1")),
        st.builds("({})^{}".format, inner, st.integers(0, 3)),
    ),
    max_leaves=4,
)
ANSWERS = st.one_of(
    EXPRESSIONS,
    st.builds(r"\{{{}, {}\}}".format, EXPRESSIONS, EXPRESSIONS),
    st.builds("({}, {})".format, ATOMS, ATOMS),
    st.builds("x={}".format, EXPRESSIONS),
)


@given(ANSWERS, ANSWERS)
@settings(max_examples=100, deadline=None)
def test_other_verdicts_are_those_of_math_verify(
    pool: ScoringPool, reference: ScoringPool, gold: str, answer: str
) -> None:
    """Numbers of ordinary size give math-verify no occasion to round wrongly."""
    for text in (answer, gold, f"{gold}+0"):
        expected = asyncio.run(reference.score(as_it_is, 60, text, gold))
        assert score(pool, text, gold) == expected, (gold, text)
