"""Benchmarks: parts keep each other's figures, contenders take turns, pictures, and engines that
benchmarks bring."""

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench import frame, pictures
from bench.frame import Found
from prorl_service.inference.pool import BackendPool
from prorl_service.schemas import BackendSpec


def test_a_part_that_is_measured_alone_leaves_the_others_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "RESULTS", tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", frame.__spec__)

    def measured(number: int, *arguments: str) -> dict[str, Any]:
        def part(name: str) -> frame.Part:
            return lambda quick: Found([{"n": number}], {f"{name}_n": number, "quick": quick})

        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        frame.run("some", {"one": part("one"), "two": part("two")})
        return frame.written("some")

    assert measured(1)["rows"] == [{"part": "one", "n": 1}, {"part": "two", "n": 1}]
    again = measured(2, "two")
    assert again["rows"] == [{"part": "one", "n": 1}, {"part": "two", "n": 2}]
    assert again["headline"] == {"one_n": 1, "two_n": 2, "quick": False}
    assert again["command"] == "python -m bench.frame two"
    assert measured(3, "--quick") == again


def test_contenders_take_turns_each_round_with_another_one_first() -> None:
    order: list[str] = []

    def turn(name: str, number: int) -> str:
        order.append(name)
        return f"{name}{number}"

    found = frame.alternate({name: partial(turn, name) for name in "abc"}, 3)
    assert "".join(order) == "abcbcacab"
    assert found["b"] == ["b0", "b1", "b2"]


def test_the_middle_row_has_the_median_and_what_failed_counts_as_the_largest() -> None:
    rows: list[frame.Row] = [{"ms": 3.0}, {"ms": None}, {"ms": 1.0}]
    assert frame.middle(rows, "ms") == {"ms": 3.0}
    low, high = frame.interval([1.0, 2.0, 4.0])
    assert (low, high) == (1.0, 4.0)


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_drawn_from_its_file_and_is_always_the_same(name: str, tmp_path: Path) -> None:
    for end in (".json", ".svg"):
        shutil.copy((pictures.RESULTS / name).with_suffix(end), tmp_path)
    before = (tmp_path / f"{name}.svg").read_text()
    content = json.loads((tmp_path / f"{name}.json").read_text())
    made = pictures.draw(name, tmp_path).read_text()
    assert content["rows"]
    assert made.count("<text") == before.count("<text")


def test_every_picture_of_the_results_is_one_that_can_be_drawn_again() -> None:
    assert {file.stem for file in pictures.RESULTS.glob("*.svg")} == set(pictures.PICTURES)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("module", "arguments"), [("bench.load.engine", ["1"]), ("bench.ablation.engine", [])]
)
async def test_a_service_takes_the_engine(
    module: str, arguments: list[str], tiny_model: Path, tmp_path: Path
) -> None:
    with frame.engine_program(module, str(tiny_model), *arguments) as url:
        async with BackendPool(tmp_path) as pool:
            added = await pool.add(BackendSpec(url=url))
    assert added.state == "healthy"
