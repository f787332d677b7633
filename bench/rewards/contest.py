"""Our scoring and verl's on the same rows, in turns, so that other load hinders both."""

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Self, TypeVar

ROOT = Path(__file__).parents[2]

T = TypeVar("T")


class Reference:
    """A process of verl's environment. `with Reference() as reference`."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [ROOT / ".venv-verl/bin/python", "-m", "bench.rewards.reference"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()

    def score(self, scorer: str, rows: Sequence[tuple[str, Any]]) -> tuple[list[float], float]:
        """Returns the scores, and the seconds they took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"scorer": scorer, "rows": rows}), file=self._process.stdin, flush=True)
        said = json.loads(self._process.stdout.readline())
        return said["scores"], said["took_s"]


@dataclass(slots=True)
class Standing:
    scores: list[float] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def rows_per_s(self) -> float:
        return len(self.scores) / self.took_s


async def contest(
    rows: Sequence[T],
    ours: Callable[[T], Awaitable[float]],
    theirs: Callable[[Sequence[T]], tuple[list[float], float]],
    *,
    turn: int,
) -> tuple[Standing, Standing]:
    """Scores `turn` rows at a time, concurrently. A first turn, to warm up, is not counted."""
    standings = Standing(), Standing()
    await asyncio.gather(*map(ours, rows[:turn]))
    theirs(rows[:turn])
    for start in range(0, len(rows), turn):
        some = rows[start : start + turn]
        started = perf_counter()
        standings[0].scores += await asyncio.gather(*map(ours, some))
        standings[0].took_s += perf_counter() - started
        scores, took_s = theirs(some)
        standings[1].scores += scores
        standings[1].took_s += took_s
    return standings
