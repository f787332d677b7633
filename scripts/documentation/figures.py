"""Checks that figures in pages are those of the measurements in bench/results.

A comment before a paragraph, list or table names the file that its figures come from:
`<!-- figures: bench/results/tools.json -->`, or several files, with spaces between. Every number
in it must then be a value of that file, rounded, or one of the numbers that the comment excepts:
`<!-- figures: bench/results/load.json; except 64 256 -->`, such as settings and names. A value may
be shown as a percentage, in thousandths or in thousands. The sum of a column of the rows is a
value, too, and zeros at the end of a number of three digits or more may be rounded.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from scripts.documentation.pages import RESULTS, ROOT, in_repository

MARKER = re.compile(r"<!-- figures: ([^;]+?)(?:; except ([^>]+?))? -->")
NUMBER = re.compile(r"(?<![\w.,/-])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?|(?<![\w.])\.\d+")
SCALES = (1.0, 100.0, 1000.0, 1e-3, 1e6, 1e-6)


@dataclass(frozen=True, slots=True)
class Quotation:
    """A part of a page whose figures come from `files`."""

    page: Path
    line: int
    files: tuple[str, ...]
    excepted: frozenset[str]
    text: str

    @property
    def numbers(self) -> list[str]:
        return [one for one in NUMBER.findall(self.text) if one not in self.excepted]


def quotations() -> Iterator[Quotation]:
    for page in in_repository():
        yield from _quotations(page)


def wrong() -> Iterator[str]:
    """Yields each figure that is not in the file that it is said to come from."""
    for one in quotations():
        for name in one.files:
            if not (ROOT / name).is_file():
                yield f"{one.page}:{one.line}: there is no {name}"
                break
        else:
            values = frozenset().union(*(_values(name) for name in one.files))
            for number in one.numbers:
                if not is_quoted(number, values):
                    yield f"{one.page}:{one.line}: {number} is not in {', '.join(one.files)}"


def unchecked() -> Iterator[str]:
    """Yields pages that link a measurement, and say of no part that its figures come from there."""
    for page in in_repository():
        text = (ROOT / page).read_text(encoding="utf-8")
        linked = set(re.findall(rf"\]\((?:\.\./)*({RESULTS}/\w+\.json)\)", text))
        for name in sorted(linked - {file for one in _quotations(page) for file in one.files}):
            yield f"{page}: no part is marked as quoting {name}"


def is_quoted(number: str, values: Iterable[float]) -> bool:
    """Returns whether the number is one of the values, rounded to its own digits."""
    plain = number.replace(",", "")
    shown = float(plain)
    mantissa = plain.partition("e")[0]
    decimals = len(mantissa.partition(".")[2])
    exponent = int(plain.partition("e")[2] or 0)
    zeros = len(plain) - len(plain.rstrip("0")) if plain.isdigit() and len(plain) > 2 else 0
    step = 10.0 ** (exponent - decimals + zeros)
    return any(abs(shown - value * scale) <= 0.5001 * step for value in values for scale in SCALES)


def _quotations(page: Path) -> Iterator[Quotation]:
    tokens = MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text("utf-8"))
    for number, token in enumerate(tokens):
        found = MARKER.search(token.content) if token.type == "html_block" else None
        if found is not None:
            line = token.map[0] + 1 if token.map else 0
            text = " ".join(_texts(_next_block(tokens[number + 1 :])))
            excepted = frozenset((found[2] or "").split())
            yield Quotation(page, line, tuple(found[1].split()), excepted, text)


def _next_block(tokens: list[Token]) -> Iterator[Token]:
    depth = 0
    for token in tokens:
        depth += token.nesting
        yield token
        if depth == 0:
            return


def _texts(tokens: Iterable[Token]) -> Iterator[str]:
    for token in tokens:
        for child in token.children or []:
            if child.type == "text":
                yield child.content


@cache
def _values(name: str) -> frozenset[float]:
    """Returns all numbers of a file but those of its series, and the sums of its columns."""
    result = json.loads((ROOT / name).read_text(encoding="utf-8"))
    result.pop("series", None)
    return frozenset([*_numbers(result), *_sums(result["rows"])])


def _sums(rows: list[dict[str, Any]]) -> Iterator[float]:
    """The sums of each column, over rows of one kind."""
    for _, alike in groupby(sorted(rows, key=list), key=list):
        table = list(alike)
        for column in table[0]:
            cells = [row[column] for row in table]
            if all(isinstance(cell, int | float) for cell in cells):
                yield float(sum(cells))


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for one in value.values():
            yield from _numbers(one)
    elif isinstance(value, list):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)
    elif isinstance(value, str):
        yield from (float(one.replace(",", "")) for one in NUMBER.findall(value))
