"""Answers and programs, right and wrong, which were made from a seed for this repository.

`math.jsonl`: a gold answer and a reply a line, of 25 kinds of answers; the shared table of tricky
pairs goes before them. `code.json`: twenty problems with six programs each on five sets of tests in
the form of APPS, and tricky ones. `reasons.toml`: why scorers disagree.
"""

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.rewards.math_table import ERRORS, TABLE

HERE = Path(__file__).parent
REASONS: dict[str, dict[str, str]] = tomllib.loads((HERE / "reasons.toml").read_text())


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """`truth`: a gold answer, or tests."""

    name: str
    answer: str
    truth: Any
    right: bool


def math() -> list[ScoredRow]:
    tabled = [
        ScoredRow(f"table-{row.number}", row.reply, row.gold, row.right)
        for row in [*TABLE, *ERRORS]
    ]
    made = map(json.loads, (HERE / "math.jsonl").read_text().splitlines())
    return tabled + [ScoredRow(name, reply, gold, right) for name, gold, reply, right in made]


def code() -> list[ScoredRow]:
    data = json.loads((HERE / "code.json").read_text())
    programs, tests = data["programs"], data["tests"]
    return [
        ScoredRow(name, programs[program], tests[set_], right)
        for name, program, set_, right in data["rows"]
    ]
