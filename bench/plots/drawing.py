"""Draws the picture of a measurement from its file."""

import json
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from bench import result
from bench.plots import (
    ablation,
    curriculum,
    dapo,
    demo,
    environments,
    gateway_learning,
    load,
    math_demo,
    nodes,
    routing,
    style,
    swe_offline,
    tools,
    trl_dynamic_sampling,
    verl,
)

Draw = Callable[[style.Result], Figure]
PICTURES: dict[str, tuple[str, Draw]] = {
    "ablation": ("ablation", ablation.draw),
    "curriculum": ("curriculum", curriculum.draw),
    "dapo": ("dapo", dapo.draw),
    "demo": ("demo", demo.draw),
    "environments": ("environments", environments.draw),
    "gateway_learning": ("gateway_learning", gateway_learning.draw),
    "load": ("load", load.draw),
    "math_demo": ("math_demo", math_demo.draw),
    "routing": ("routing", routing.draw),
    "scale": ("scale", nodes.draw),
    "swe_offline": ("swe_offline", swe_offline.draw),
    "tools": ("tools", tools.draw),
    "trl_dynamic_sampling": ("trl_dynamic_sampling", trl_dynamic_sampling.draw),
    "verl": ("verl", verl.draw),
    "verl_pi": ("verl", verl.draw_pi),
}
"""Name of the file, without .json, and what draws it, by name of the picture."""


class LacksSeriesError(Exception):
    """The file has not what the picture shows: it is older than that, or was not measured."""


def redraw(name: str, directory: Path = result.RESULTS) -> Path:
    """Writes NAME.png beside its file, and returns its path. Raises `LacksSeriesError`."""
    source, draw = PICTURES[name]
    file = directory / f"{source}.json"
    if not file.exists():
        raise LacksSeriesError(f"{name}: there is no {file.name} yet")
    try:
        made = draw(json.loads(file.read_text(encoding="utf-8")))
    except KeyError as error:
        raise LacksSeriesError(f"{name}: {file.name} has no {error}; measure it again") from error
    path = directory / f"{name}.png"
    made.savefig(path, dpi=style.DPI)
    return path
