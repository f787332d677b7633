"""Cheating patches for tests and measurements of the SWE grader, from `cheats.toml`.

`GENERAL` know pytest and unittest but not the grader; most swallow what a test raises. `SELECTORS`
wrap the runner and choose which failures to swallow. `OFFLINE` know pytest's internals or this
grader. Each is a function of an instance that gives files, as `patches.Checkout.patch` takes them.
The service runs none of them.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

from recipes.swebench.rows import SweInstance

Files = Mapping[str, str | None]
Cheat = Callable[[SweInstance], Files]

_DATA: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
TURN_REPORTS: str = _DATA["texts"]["TURN_REPORTS"]


def _of(kind: str, prefix: str) -> dict[str, Cheat]:
    return {
        f"{prefix}{name}": partial(_files, texts)
        for written, texts in _DATA[kind].items()
        for name, texts in _chosen(written, dict(texts))
    }


def _chosen(name: str, texts: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields a cheat for each of the conditions, or the only one."""
    for what, condition in texts.pop("conditions", {"": ""}).items():
        separator = " " if name and what[:1].isalpha() else ""
        chosen = {
            file: text and text.replace("CONDITION", condition) for file, text in texts.items()
        }
        yield f"{name}{separator}{what}", chosen


def _files(texts: Mapping[str, Any], row: SweInstance) -> Files:
    shared = _DATA["texts"]
    known = {
        "SOURCE": row.source_file,
        "TESTS": row.file_of_tests,
        "IDS": repr([*row.FAIL_TO_PASS, *row.PASS_TO_PASS]),
        "DESELECT": " ".join(f"--deselect={one}" for one in row.FAIL_TO_PASS),
    }

    def filled(text: str) -> str:
        once = Template(text).substitute(known, **shared)
        return Template(once).substitute(shared)

    return {
        filled(file): filled(f"+{text}" if file == "$SOURCE" else text) if text else None
        for file, text in texts.items()
    }


GENERAL = _of("general", "general: ")
SELECTORS = _of("select", "select: ")
OFFLINE = _of("offline", "")
