"""Comparison of numbers: rational ones exactly, decimals by their digits.

math-verify compares numbers by 15 digits of their difference and rounds decimals to six places, so
that small numbers are all equal. `mend_comparison` replaces that step, for numbers on their own and
in sets, pairs and matrices. Only for processes of the scoring pool, because it changes another
package.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from math_verify import grader
from sympy import Add, Basic, Expr, Float, Mul, Pow, Rational, UnevaluatedExpr, factorial
from sympy.core.relational import Equality

MAX_BITS = 1 << 16
"""Size of numerator and denominator up to which numbers are calculated."""

MAX_FACTORIAL = 5000
RELATIVE_TOLERANCE = Fraction(1, 10**6)
"""Largest relative difference of equal decimals below `SMALL`."""
SMALL = Fraction(1, 10**3)
HALF_A_PLACE = Fraction(5, 10**7)
"""Largest difference of other equal decimals: that of rounding to six places."""
DIGITS = 20

NumericEq = Callable[[Any, Any, int, int], bool]


class _NotRational(ValueError):
    """The expression is no rational number, or one too large to calculate."""


def mend_comparison() -> None:
    """Changes math-verify. Call it once per process."""
    grader.sympy_numeric_eq = _numeric_eq(grader.sympy_numeric_eq)


def _numeric_eq(verify: NumericEq) -> NumericEq:
    def numeric_eq(gold: Any, answer: Any, rounding: int, precision: int) -> bool:
        ours, theirs = rational(gold), rational(answer)
        if ours is not None and theirs is not None:
            has_decimals = gold.has(Float) or answer.has(Float)
            return close(ours, theirs) if has_decimals else ours == theirs
        if not verify(gold, answer, rounding, precision):
            return False
        ours, theirs = _approximate(gold), _approximate(answer)
        return ours is None or theirs is None or close(ours, theirs)

    return numeric_eq


def close(one: Fraction, other: Fraction) -> bool:
    """Compares decimals: six places, and below `SMALL` six digits."""
    largest = max(abs(one), abs(other))
    most = RELATIVE_TOLERANCE * largest if largest < SMALL else HALF_A_PLACE
    return abs(one - other) <= most


def is_false(expression: Any) -> bool:
    """Returns whether it says that two different rational numbers are equal, as `4 = 5` does.

    Decimals do not count: they may have been rounded.
    """
    return isinstance(expression, Basic) and any(
        _are_different(equation.lhs, equation.rhs) for equation in expression.atoms(Equality)
    )


def _are_different(one: Any, other: Any) -> bool:
    if one.has(Float) or other.has(Float):
        return False
    left, right = rational(one), rational(other)
    return left is not None and right is not None and left != right


def rational(expression: Any) -> Fraction | None:
    """Returns the exact value, a decimal's as it is written. None for all other expressions."""
    try:
        return _value(expression)
    except (ValueError, ZeroDivisionError):
        return None


def _value(expression: Any) -> Fraction:
    match expression:
        case Rational():
            value = Fraction(int(expression.p), int(expression.q))
        case Float():
            value = Fraction(str(expression))
        case Add():
            value = Fraction(0)
            for term in expression.args:
                value = _bounded(value + _value(term))
        case Mul():
            value = Fraction(1)
            for factor in expression.args:
                value = _bounded(value * _value(factor))
        case Pow():
            value = _power(*map(_value, expression.args))
        case factorial():
            value = _factorial(_value(expression.args[0]))
        case _:
            raise _NotRational
    return _bounded(value)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or _bits(base) * abs(exponent) > MAX_BITS:
        raise _NotRational
    return base ** int(exponent)


def _factorial(number: Fraction) -> Fraction:
    if number.denominator != 1 or not 0 <= number <= MAX_FACTORIAL:
        raise _NotRational
    return Fraction(math.factorial(int(number)))


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise _NotRational
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _approximate(expression: Any) -> Fraction | None:
    """Returns a real number by its first digits. None for others and for percentages, which stand
    for two numbers each."""
    if not isinstance(expression, Expr) or expression.has(UnevaluatedExpr):
        return None
    try:
        return Fraction(str(expression.evalf(DIGITS)))
    except ValueError:  # variables, complex numbers, infinity
        return None
