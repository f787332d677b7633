"""Cheats against the verifiers of Harbor tasks, on each shape of verifier. A quarter of an hour.

Each runs twice: graded by the service, and by the same verifier in the agent's own sandbox, where
it must win on one shape at least. Needs gcc, Apptainer and what tests need.
"""

import asyncio
from collections.abc import Mapping

from bench import frame
from prorl_service.agents.harbor.directory.checks import NOTHING, ORACLE
from tests.agents.harbor.guard.cheats import CHEATS, preload
from tests.agents.harbor.guard.probing import measure as probe
from tests.agents.harbor.guard.shapes import SHAPES


def measure(quick: bool) -> frame.Found:
    cheats = {**CHEATS, **preload()}
    if quick:
        cheats = dict(list(cheats.items())[:2])
    rewards, won = asyncio.run(probe(cheats, lambda line: print(f"  {line}", flush=True)))
    rows = [
        {"script": name, **_cells(by_shape), "wins in place": ", ".join(won.get(name, ()))}
        for name, by_shape in rewards.items()
    ]
    headline = {
        "shapes": len(SHAPES),
        "harbor_cheats": len(cheats),
        "harbor_cheats_tried": len(cheats) * len(SHAPES),
        "harbor_cheats_rewarded": sum(_gained(rewards[name]) for name in cheats),
        "harbor_cheats_rewarded_in_place": sum(map(len, won.values())),
        "cheats_that_win_nowhere": sum(not shapes for shapes in won.values()),
        "oracle": _gained(rewards[ORACLE]) / len(SHAPES),
        "nothing": _gained(rewards[NOTHING]) / len(SHAPES),
    }
    return frame.Found(rows, headline)


def _cells(by_shape: Mapping[str, float | None]) -> frame.Row:
    return {shape: "error" if reward is None else reward for shape, reward in by_shape.items()}


def _gained(by_shape: Mapping[str, float | None]) -> int:
    return sum(reward is not None and reward > 0 for reward in by_shape.values())


if __name__ == "__main__":
    frame.run("harbor_guard", {"harbor_guard": measure})
