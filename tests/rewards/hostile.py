"""Answers and programs that try to hang, crash or fool their scorer. All are wrong.

Shared by tests and the benchmark; `hostile.toml` has those that can be written. Programs are graded
on tests whose outputs cannot be guessed.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECRETS = {"inputs": ["1\n", "2\n"], "outputs": ["5e1f-c0ffee-3d\n", "77aa-decaf-91\n"]}
SECRET_CALLS = {"fn_name": "solve", "inputs": [[1], [2]], "outputs": ["5e1f-c0ffee", "77aa-decaf"]}


@dataclass(frozen=True, slots=True)
class HostileAnswer:
    name: str
    reply: str
    gold: str = "42"


@dataclass(frozen=True, slots=True)
class HostileProgram:
    name: str
    source: str
    is_call: bool = False

    @property
    def tests(self) -> dict[str, Any]:
        return SECRET_CALLS if self.is_call else SECRETS


def box(content: str) -> str:
    return f"\\boxed{{{content}}}"


_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
HOSTILE_ANSWERS = [
    *(HostileAnswer(**row) for row in _DATA["answers"]),
    HostileAnswer("deep braces", box("{" * 50 + "41" + "}" * 50)),
    HostileAnswer("deep parentheses", box("(" * 50 + "41" + ")" * 50)),
    HostileAnswer("deep fractions", box(r"\frac{1}{" * 500 + "2" + "}" * 500)),
    HostileAnswer("deep roots", box(r"\sqrt{" * 300 + "2" + "}" * 300)),
    HostileAnswer("deeper than any stack", box("{" * 200_000 + "}" * 200_000)),
    HostileAnswer("a million digits", box("4" * 1_000_000)),
    HostileAnswer("repeats itself", box("+".join(["1"] * 100_000))),
    HostileAnswer("boxes for ever", r"\boxed{" * 100_000),
    HostileAnswer("many boxes", " ".join(box(str(number)) for number in range(41))),
    HostileAnswer("every answer", box(",".join(map(str, range(100))))),
    HostileAnswer("not text", box("\x00\udcff\u202e\U0001f4a9")),
]
CHEATS = [HostileProgram(**row) for row in _DATA["cheats"]]
"""Programs made for scorers that run them in the process that knows the outputs."""
HOSTILE_PROGRAMS = [
    *CHEATS,
    *(HostileProgram(**row) for row in _DATA["programs"]),
    HostileProgram("is too deep to compile", "(" * 100_000),
    HostileProgram("takes long to compile", "x = " + "+".join(["1"] * 300_000)),
    HostileProgram("is not text", "\udcff\udcfe\x00"),
]

KNOWS = 'n = input()\nprint({"1": "5e1f-c0ffee-3d", "2": "77aa-decaf-91"}[n])\n'
"""Program that knows what cannot be known: it shows that the grader does grade."""
