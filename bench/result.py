"""How every benchmark leaves its figures: bench/results/NAME.json."""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from recipes.demo.report import machine

RESULTS = Path(__file__).parent / "results"


def write(
    name: str, rows: Sequence[Mapping[str, object]], headline: Mapping[str, float | int]
) -> Path:
    """`headline` is flat. The load is that of the last minute, this process included."""
    path = RESULTS / f"{name}.json"
    result = {
        "command": shlex.join(["python", "-m", f"bench.{name}", *sys.argv[1:]]),
        "machine": machine(),
        "load": round(os.getloadavg()[0], 2),
        "headline": dict(headline),
        "rows": [dict(row) for row in rows],
    }
    path.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    return path
