"""Writes the figures of every benchmark: bench/results/NAME.json."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from recipes.common.versions import machine

RESULTS = Path(__file__).parent / "results"

Part = tuple[Sequence[Mapping[str, object]], Mapping[str, object]]
"""Rows, and their share of the headline."""


def write(
    name: str,
    rows: Sequence[Mapping[str, object]],
    headline: Mapping[str, object],
    *,
    series: Mapping[str, object] | None = None,
    room: str = "bench",
    module: str | None = None,
) -> None:
    """Writes NAME.json, and prints the rows as the tables that docs quote. `headline` is flat.
    `series`: what a picture shows beyond the rows; pages do not quote it. `room`: the package that
    the measurement is in. `module`: its name there, if it is not NAME.

    The load is that of the last minute, this process included.
    """
    path = RESULTS / f"{name}.json"
    result = {
        "command": shlex.join(["python", "-m", f"{room}.{module or name}", *sys.argv[1:]]),
        "machine": machine(),
        "load": round(os.getloadavg()[0], 2),
        "headline": dict(headline),
        "rows": [dict(row) for row in rows],
        **({} if series is None else {"series": dict(series)}),
    }
    path.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    for columns, alike in groupby(rows, key=tuple):
        _print_table(columns, alike)
    print(f"written to {path}")


def write_parts(
    name: str,
    parts: Mapping[str, Callable[[], Part]],
    named: Sequence[str],
    *,
    module: str | None = None,
) -> None:
    """Measures the parts that are named, or all; the others keep their figures. Writes after each
    part. `module`: as for `write`."""
    file, order = RESULTS / f"{name}.json", list(parts)
    before = json.loads(file.read_text()) if file.exists() else {"headline": {}, "rows": []}
    headline, rows = dict(before["headline"]), list(before["rows"])
    for part in named or order:
        found, figures = parts[part]()
        rows = [one for one in rows if one["part"] != part]
        rows += [{"part": part, **one} for one in found]
        rows.sort(key=lambda one: order.index(one["part"]))
        headline |= figures
        write(name, rows, headline, module=module)


def _print_table(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    print("| " + " | ".join(columns) + " |")
    print("|" + " --- |" * len(columns))
    for row in rows:
        print("| " + " | ".join(map(_cell, row.values())) + " |")


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
