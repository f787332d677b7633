"""Pairs of a gold answer and a reply, right and wrong, made from a seed for this repository.

A family writes one kind of answer in the usual ways. Tricky pairs are in the shared table, which is
included.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle, islice
from math import gcd
from random import Random

from bench.rewards.math_table import ERRORS, TABLE

Forms = tuple[str, list[str], list[str]]
"""A gold answer, other ways to write it, and wrong answers."""


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    family: str
    gold: str
    reply: str
    right: bool


def rows(per_family: int, *, seed: int) -> list[Row]:
    """Returns the table, and `per_family` rows of each family, right and wrong in turns."""
    tabled = [
        Row(f"table-{row.number}", "table", row.gold, row.reply, row.right)
        for row in [*TABLE, *ERRORS]
    ]
    rng = Random(seed)
    return tabled + [row for family in FAMILIES for row in islice(_family(family, rng), per_family)]


def _family(family: Callable[[Random], Forms], rng: Random) -> Iterator[Row]:
    name = family.__name__
    for number, right in enumerate(cycle((True, False))):
        gold, equal, other = family(rng)
        answer = rng.choice(equal if right else other)
        reply = rng.choice(REPLIES).replace("ANSWER", answer)
        yield Row(f"{name}-{number}", name, gold, reply, right)


REPLIES = [
    r"\boxed{ANSWER}",
    r"The answer is $\boxed{ANSWER}$.",
    r"We compute step by step, check the result, and find \[\boxed{ANSWER}\]",
    "Let $a = 3$ and $b = 4$, so that $a^2 + b^2 = 25$.\n\nHence the result is \\boxed{ANSWER}.",
    "First I tried 17, which fails. Then I ran a script.\n\n**Answer:** \\(\\boxed{ANSWER}\\)",
]


def integers(rng: Random) -> Forms:
    n = rng.randrange(-999, 10_000)
    return str(n), [str(n), f"{n}.0", f"x={n}"], [str(n + 1), str(-n - 1), f"{n}.5"]


def large_integers(rng: Random) -> Forms:
    n = rng.randrange(10_000, 10**9)
    return str(n), [f"{n:,}", f"{n:,}".replace(",", "{,}"), str(n)], [f"{n + 10:,}", str(n // 10)]


def fractions(rng: Random) -> Forms:
    value, k = _fraction(rng), rng.randrange(2, 9)
    p, q = value.numerator, value.denominator
    return (
        f"\\frac{{{p}}}{{{q}}}",
        [f"\\dfrac{{{p}}}{{{q}}}", f"\\frac{{{k * p}}}{{{k * q}}}", f"{p}/{q}"],
        [f"\\frac{{{q}}}{{{p}}}", f"\\frac{{{p + q}}}{{{q}}}", f"-\\frac{{{p}}}{{{q}}}"],
    )


def mixed_numbers(rng: Random) -> Forms:
    value, whole = _fraction(rng), rng.randrange(1, 20)
    p, q = value.numerator % value.denominator or 1, value.denominator
    return (
        f"\\frac{{{whole * q + p}}}{{{q}}}",
        [f"{whole}\\frac{{{p}}}{{{q}}}", f"{whole}+\\frac{{{p}}}{{{q}}}"],
        [f"{whole + 1}\\frac{{{p}}}{{{q}}}", f"{whole}", f"{whole}-\\frac{{{p}}}{{{q}}}"],
    )


def decimals(rng: Random) -> Forms:
    n = rng.randrange(1, 4000)
    value = Fraction(n, 1000)
    fraction = f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
    return (
        str(n / 1000),
        [fraction, f"{n / 1000:.5f}", f"{n / 1000}"],
        [f"{n / 1000 + 0.001:.4f}", f"{n / 100}", f"{n}"],
    )


def roots(rng: Random) -> Forms:
    k, m = rng.randrange(2, 12), rng.choice((2, 3, 5, 6, 7, 10))
    return (
        f"{k}\\sqrt{{{m}}}",
        [
            f"\\sqrt{{{k * k * m}}}",
            f"\\sqrt{{{m}}}\\cdot {k}",
            f"\\frac{{{k * m}}}{{\\sqrt{{{m}}}}}",
        ],
        [f"\\sqrt{{{k * m}}}", f"{k}\\sqrt{{{m + 1}}}", f"{m}\\sqrt{{{k}}}"],
    )


def powers(rng: Random) -> Forms:
    base, exponent = rng.randrange(2, 10), rng.randrange(3, 12)
    value = base**exponent
    return (
        f"{base}^{{{exponent}}}",
        [
            str(value),
            f"{base}\\cdot {base}^{{{exponent - 1}}}",
            f"{base}^{exponent - 2}\\times {base**2}",
        ],
        [f"{base}^{{{exponent + 1}}}", str(value - 1), str(base * exponent)],
    )


def polynomials(rng: Random) -> Forms:
    a, b = rng.sample([n for n in range(-9, 10) if n], 2)
    return (
        _polynomial(a + b, a * b),
        [f"(x{a:+d})(x{b:+d})", f"{a * b}{_signed(a + b)}x+x^2" if a + b else f"x^2{a * b:+d}"],
        [f"(x{-a:+d})(x{b:+d})", _polynomial(a + b + 1, a * b), f"x^2{a * b + 1:+d}"],
    )


def lines(rng: Random) -> Forms:
    m, c = rng.randrange(2, 9), rng.randrange(1, 9)
    return (
        f"y={m}x+{c}",
        [f"{m}x-y+{c}=0", f"y={c}+{m}x", f"y-{c}={m}x"],
        [f"y={m}x-{c}", f"y={c}x+{m + 10}", f"{m}x+y+{c}=0"],
    )


def sets(rng: Random) -> Forms:
    items = rng.sample(range(-20, 50), 3)
    turned = [items[2], items[0], items[1]]
    return (
        f"\\{{{_listed(items)}\\}}",
        [f"\\{{{_listed(turned)}\\}}", _listed(turned)],
        [f"\\{{{_listed(items[:2])}\\}}", f"\\{{{_listed([*items[:2], 99])}\\}}"],
    )


def points(rng: Random) -> Forms:
    a, b = rng.sample(range(-30, 30), 2)
    half = f"\\frac{{{2 * b}}}{{2}}"
    return f"({a},{b})", [f"({a}, {b})", f"({a},{half})"], [f"({b},{a})", f"({a},{b + 1})"]


def triples(rng: Random) -> Forms:
    a, b, c = rng.sample(range(-9, 30), 3)
    return f"({a},{b},{c})", [f"({a}, {b}, {c})"], [f"({c},{b},{a})", f"({a},{b},{c + 1})"]


def intervals(rng: Random) -> Forms:
    a = rng.randrange(-20, 20)
    b = a + rng.randrange(1, 30)
    return (
        f"[{a},{b})",
        [f"[{a}, {b})", f"\\left[{a},{b}\\right)", f"[{a},\\frac{{{2 * b}}}{{2}})"],
        [f"({a},{b})", f"[{a},{b}]", f"[{a},{b + 1})"],
    )


def unions(rng: Random) -> Forms:
    a = rng.randrange(1, 20)
    left, right = f"(-\\infty,-{a})", f"({a},\\infty)"
    return f"{left}\\cup{right}", [f"{right}\\cup {left}"], [right, f"{left}\\cup({a + 1},\\infty)"]


def units(rng: Random) -> Forms:
    n = rng.randrange(2, 500)
    unit = rng.choice(("cm", "km", "m", "kg", "hours"))
    return (
        str(n),
        [f"{n}\\text{{ {unit}}}", f"{n} \\text{{ {unit}}}"],
        [f"{n + 1}\\text{{ {unit}}}"],
    )


def money(rng: Random) -> Forms:
    n = rng.randrange(2, 900)
    return str(n), [f"\\${n}", f"\\${n}.00"], [f"\\${n + 1}", f"\\${n}.50"]


def degrees(rng: Random) -> Forms:
    n = rng.randrange(2, 180)
    return str(n), [f"{n}^\\circ", f"{n}^{{\\circ}}"], [f"{n + 1}^\\circ", f"{180 + n}^\\circ"]


def angles(rng: Random) -> Forms:
    q, p = rng.choice((3, 4, 5, 6, 12)), rng.choice((1, 5, 7, 11))
    return (
        f"\\frac{{{p}\\pi}}{{{q}}}",
        [f"\\frac{{{p}}}{{{q}}}\\pi", f"\\frac{{{2 * p}\\pi}}{{{2 * q}}}"],
        [f"\\frac{{{p}\\pi}}{{{q + 1}}}", f"\\frac{{{p}}}{{{q}}}", f"-\\frac{{{p}\\pi}}{{{q}}}"],
    )


def logarithms(rng: Random) -> Forms:
    a, b = rng.sample((2, 3, 5, 7, 11), 2)
    return (
        f"\\ln {a * b}",
        [f"\\ln {a}+\\ln {b}", f"\\ln({b})+\\ln({a})"],
        [f"\\ln {a + b}", f"\\ln {a}-\\ln {b}", f"{a}\\ln {b}"],
    )


def complex_numbers(rng: Random) -> Forms:
    a, b = rng.randrange(1, 20), rng.randrange(2, 20)
    return f"{a}+{b}i", [f"{b}i+{a}", f"{a} + {b}i"], [f"{a}-{b}i", f"{b}+{a + 20}i"]


def matrices(rng: Random) -> Forms:
    a, b, c, d = rng.sample(range(-9, 20), 4)
    return (
        _matrix("pmatrix", a, b, c, d),
        [_matrix("bmatrix", a, b, c, d), _matrix("pmatrix", a, b, c, d)],
        [_matrix("pmatrix", a, c, b, d), _matrix("pmatrix", a, b, c, d + 1)],
    )


def letters(rng: Random) -> Forms:
    letter, other = rng.sample("ABCDE", 2)
    return f"\\text{{{letter}}}", [letter, f"\\text{{{letter}}}"], [other, f"\\text{{{other}}}"]


def words(rng: Random) -> Forms:
    word, other = rng.sample(("even", "odd", "Tuesday", "circle", "increasing", "parabola"), 2)
    return (
        f"\\text{{{word}}}",
        [f"\\text{{{word}}}", f"\\text{{{word.title()}}}"],
        [f"\\text{{{other}}}"],
    )


def binomials(rng: Random) -> Forms:
    n, k = rng.randrange(5, 12), rng.randrange(2, 4)
    value = 1
    for step in range(k):
        value = value * (n - step) // (step + 1)
    return (
        f"\\binom{{{n}}}{{{k}}}",
        [str(value), f"\\binom{{{n}}}{{{n - k}}}"],
        [str(value + 1), f"\\binom{{{n + 1}}}{{{k}}}"],
    )


def percentages(rng: Random) -> Forms:
    n = rng.randrange(1, 100)
    return f"{n}\\%", [f"{n}\\%"], [f"{n + 1}\\%", str(n + 1)]


FAMILIES = [
    *(integers, large_integers, fractions, mixed_numbers, decimals, roots, powers, polynomials),
    *(lines, sets, points, triples, intervals, unions, units, money, degrees, angles, logarithms),
    *(complex_numbers, matrices, letters, words, binomials, percentages),
]


def _fraction(rng: Random) -> Fraction:
    q = rng.randrange(2, 40)
    return Fraction(rng.choice([p for p in range(1, 60) if gcd(p, q) == 1 and p != q]), q)


def _polynomial(linear: int, constant: int) -> str:
    return f"x^2{_signed(linear)}x{constant:+d}" if linear else f"x^2{constant:+d}"


def _signed(coefficient: int) -> str:
    return {1: "+", -1: "-"}.get(coefficient, f"{coefficient:+d}")


def _listed(items: list[int]) -> str:
    return ",".join(map(str, items))


def _matrix(kind: str, a: int, b: int, c: int, d: int) -> str:
    return f"\\begin{{{kind}}}{a}&{b}\\\\{c}&{d}\\end{{{kind}}}"
