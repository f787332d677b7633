"""`bench.plots`: each picture is drawn from its file alone, or says what the file lacks."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from bench.plots.drawing import PICTURES, LacksSeriesError, redraw

from bench import result

CURVE = [0.1, 0.4, 0.3, 0.8]
RUN = {"groups": 4, "busy": [[0.0, 1.0], [1.0, 0.5], [2.0, 0.0]], "pauses": [[1.5, 2.0]]}
LEVELS = {"shares": CURVE, "levels": [CURVE, CURVE]}
SERIES: dict[str, dict[str, Any]] = {
    "curriculum": {"skill": CURVE, "off": LEVELS, "on": LEVELS},
    "dapo": {"ours": RUN, "synchronous": RUN},
    "demo": {"success": [CURVE, CURVE, CURVE]},
    "math_demo": {"success": CURVE},
    "verl": {"demo": {"reward": CURVE, "heldout": [[0, 0.1], [4, 0.8]]}},
}
"""Series as measurements write them, by picture."""

SIMULATED: list[dict[str, Any]] = [
    {"part": "simulation", "services": 1, "call_s": 10.0, "busy_simulated": 1.0, "error": 0.0},
    {"part": "simulation", "rollouts": "SWE", "design": "one", "services": 64, "busy": 1.0},
]


def _drawn(name: str, directory: Path) -> bool:
    picture = redraw(name, directory)
    return picture.read_bytes().startswith(b"\x89PNG")


def _copied(source: str, directory: Path) -> Path:
    return Path(shutil.copy(result.RESULTS / f"{source}.json", directory))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_drawn_from_its_file_or_stays_as_it_is(name: str, tmp_path: Path) -> None:
    source, _ = PICTURES[name]
    if (result.RESULTS / f"{source}.json").exists():
        _copied(source, tmp_path)
    with suppress(LacksSeriesError):
        assert _drawn(name, tmp_path)
        return
    assert not (tmp_path / f"{name}.png").exists()


@pytest.mark.parametrize("name", SERIES)
def test_a_picture_shows_the_series_of_its_file(name: str, tmp_path: Path) -> None:
    file = _copied(name, tmp_path)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"series": SERIES[name]}))
    assert _drawn(name, tmp_path)


def test_fleets_that_were_only_simulated_are_drawn_under_those_that_were_run(
    tmp_path: Path,
) -> None:
    file = _copied("scale", tmp_path)
    assert _drawn("scale", tmp_path)
    content = json.loads(file.read_text())
    content["rows"] = [row for row in content["rows"] if row["part"] == "services"] + SIMULATED
    file.write_text(json.dumps(content))
    alone = (tmp_path / "scale.png").read_bytes()
    assert _drawn("scale", tmp_path)
    assert (tmp_path / "scale.png").read_bytes() != alone


def test_every_picture_of_the_results_is_one_that_can_be_drawn_again() -> None:
    assert {file.stem for file in result.RESULTS.glob("*.png")} <= set(PICTURES)
