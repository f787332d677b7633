"""Tricky pairs of gold and answer, for tests and a benchmark; `math_table.toml` has them."""

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MathRow:
    """`right`: whether the reply should count. `score`: what it gets."""

    number: int
    gold: str
    reply: str
    right: bool
    note: str
    score: float

    @property
    def name(self) -> str:
        return f"{self.number}: {self.note}"


_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
TABLE, ERRORS = ([MathRow(*row) for row in _DATA[name]] for name in ("table", "errors"))
