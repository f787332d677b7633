"""The site's page of all measurements: what each file in bench/results says, and its command."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from documentation.pages import ELSEWHERE, ROOT

RESULTS = "bench/results"
INTRODUCTION = """\
# Numbers

Every figure of these pages comes from a measurement in the repository. Here is each with its
command, the machine it ran on, and its headline. The linked file has all rows. Figures of different
days are not to be compared: machine and load are in each file.
"""


def page() -> str:
    return "\n".join([INTRODUCTION, *_sections()]) + "\n"


def files() -> list[Path]:
    return sorted((ROOT / RESULTS).glob("*.json"))


def _sections() -> Iterator[str]:
    for path in files():
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        yield f"## {path.stem}\n"
        machine = _machine(result["machine"])
        yield f"`{result['command']}` on {machine}, at a load of {result['load']}."
        yield f"[All rows]({ELSEWHERE}/{RESULTS}/{path.name}).\n"
        if path.with_suffix(".png").exists():
            yield f"![{path.stem}]({ELSEWHERE}/{RESULTS}/{path.stem}.png)\n"
        yield "| headline | |"
        yield "|---|---|"
        for name, value in result["headline"].items():
            yield f"| `{name}` | {value} |"
        yield ""


def _machine(machine: dict[str, Any]) -> str:
    return f"{machine['system']} with {machine['cpus']} CPUs and {machine['memory_gib']} GiB"
