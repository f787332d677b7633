"""The frame of every measurement: run its parts, compare contenders in turns, write, draw.

A suite is its rows and the work alone. It ends with `frame.run("NAME", {"part": measure})`, which
gives it arguments, bench/results/NAME.json, the tables that pages quote, and its pictures.
"""

import argparse
import json
import os
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import httpx

from bench import pictures
from prorl_service import local
from prorl_service.net.credentials import authorization
from recipes.common.versions import machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench/results"
BOOTSTRAPS = 4000
SHOWN = 400
"""Characters of a turn's result that are printed."""

Row = dict[str, Any]
Result = TypeVar("Result")
Name = TypeVar("Name", bound=str)


@dataclass(frozen=True, slots=True)
class Found:
    """What a part has found. `headline` is flat."""

    rows: Sequence[Row]
    headline: Row
    series: Row = field(default_factory=dict)
    """What a picture shows beyond the rows; pages do not quote it."""


Part = Callable[[bool], Found | None]
"""Function that measures a part, or a little of it as a check. None: not on this machine."""


def run(name: str, parts: Mapping[str, Part]) -> None:
    """Measures the parts that are named, or all; the others keep their figures. Writes after each
    part, and draws. With `--quick`, prints and writes nothing."""
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", nargs="*", help=f"of {', '.join(parts)}; default: all")
    parser.add_argument("--quick", action="store_true", help="a little of it, as a check")
    options = parser.parse_args()
    named = options.part or [*parts]
    if unknown := set(named) - set(parts):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    for part in named:
        began = time.monotonic()
        print(f"{name}, {part}: load {_load()}", flush=True)
        found = parts[part](options.quick)
        if found is None:
            print(f"{name}, {part}: not on this machine", flush=True)
            continue
        print(f"{name}, {part}: took {time.monotonic() - began:.0f} s, load {_load()}", flush=True)
        if options.quick:
            _print_tables(found.rows)
            print(found.headline)
            continue
        before = written(name) if (RESULTS / f"{name}.json").exists() else {}
        _write(name, _merged(before, part, found, [*parts]))
        _print_tables(found.rows)
    if not options.quick and name in pictures.PICTURES:
        print(f"drawn: {pictures.draw(name, RESULTS)}")


def _merged(content: Row, part: str, found: Found, order: Sequence[str]) -> Row:
    """Returns the content with what a part has found in place of what it had. Rows of a part that
    is no more are left out."""
    if len(order) == 1:
        return {"headline": found.headline, "rows": found.rows, "series": found.series}
    others = {*order} - {part}
    rows = [row for row in content.get("rows", ()) if row["part"] in others]
    rows += [{"part": part, **row} for row in found.rows]
    rows.sort(key=lambda row: order.index(row["part"]))
    return {
        "headline": content.get("headline", {}) | found.headline,
        "rows": rows,
        "series": content.get("series", {}) | found.series,
    }


def rollouts_ended(url: str) -> int:
    """Returns how many rollouts are done or cancelled at a service."""
    text = httpx.get(f"{url}/metrics", headers=authorization(url), trust_env=False).text
    counts = re.findall(r'prorl_rollouts_ended_total\{state="(?:done|cancelled)"\} ([\d.]+)', text)
    return round(sum(map(float, counts)))


def environment(name: str) -> Path | None:
    """Returns the Python of an environment that scripts/setup-NAME makes; None if it is not there.
    Ours for ""."""
    python = ROOT / (f".venv-{name}" if name else ".venv") / "bin/python"
    return python if python.exists() else None


def in_environment(python: Path, plugin: str, module: str, *arguments: object) -> str:
    """Runs a module of this project with a trainer's plug-in. Returns what it prints."""
    paths = f"{ROOT}:{ROOT / 'plugins' / plugin}"
    done = subprocess.run(
        [str(python), "-m", module, *map(str, arguments)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    return done.stdout


@contextmanager
def engine_program(module: str, *arguments: str) -> Iterator[str]:
    """Runs an engine, `python -m MODULE ARGUMENTS --port PORT`, and yields its URL."""
    command = [sys.executable, "-m", module, *arguments]
    with TemporaryDirectory() as name, local.running(command, log=Path(name, "log")) as process:
        yield process.url


def _write(name: str, content: Row) -> None:
    module = sys.modules["__main__"].__spec__
    assert module is not None, "run it as `python -m`"
    suite = module.name.removesuffix(".__main__")
    result = {
        "command": shlex.join(["python", "-m", suite, *sys.argv[1:]]),
        "machine": machine(),
        "load": _load(),
        **{key: value for key, value in content.items() if key != "series" or value},
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    print(f"written to {path}")


def _load() -> float:
    """Returns the load of the last minute, this process included."""
    return round(os.getloadavg()[0], 2)


def _print_tables(rows: Iterable[Row]) -> None:
    for columns, alike in groupby(rows, key=tuple):
        print("| " + " | ".join(columns) + " |")
        print("|" + " --- |" * len(columns))
        for row in alike:
            print("| " + " | ".join(map(_cell, row.values())) + " |")


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def alternate(
    contenders: Mapping[Name, Callable[[int], Result]], rounds: int
) -> dict[Name, list[Result]]:
    """Has contenders take turns, each round with another one first, so that other load on the
    machine hinders all alike. Each gets the number of the round, from 0."""
    found: dict[Name, list[Result]] = {name: [] for name in contenders}
    order = [*contenders]
    for number in range(rounds):
        first = number % len(order)
        for name in (*order[first:], *order[:first]):
            found[name].append(contenders[name](number))
            shown = str(found[name][-1])[:SHOWN]
            print(f"  round {number + 1}, {name}: {shown} (load {_load()})", flush=True)
    return found


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Returns the ratio of each round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the median, by a bootstrap."""
    rng = random.Random(0)
    medians = [median(rng.choices(values, k=len(values))) for _ in range(BOOTSTRAPS)]
    cuts = quantiles(medians, n=40, method="inclusive")
    return cuts[0], cuts[-1]


def middle(rows: Sequence[Row], column: str) -> Row:
    """Returns the row whose figure is the median; None counts as the largest."""

    def figure(row: Row) -> float:
        return float("inf") if row[column] is None else row[column]

    return sorted(rows, key=figure)[len(rows) // 2]


def find(rows: Iterable[Row], **wanted: object) -> Row:
    """Returns the only row that has these values."""
    (row,) = (row for row in rows if wanted.items() <= row.items())
    return row


def written(name: str) -> Row:
    """Returns what a suite has written. Raises `FileNotFoundError`."""
    content: Row = json.loads((RESULTS / f"{name}.json").read_text())
    return content
