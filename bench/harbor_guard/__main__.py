"""Cheats against the verifiers of Harbor tasks: `python -m bench.harbor_guard [--quick]`.

Each cheat is run against each shape of verifier twice: graded by the service, and by the same
verifier in the agent's own sandbox, where it must win on one shape at least. Needs gcc, Apptainer
and what tests need. A quarter of an hour; `--quick` takes every sixth cheat and writes nothing.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import result
from bench.harbor_guard import in_place
from bench.harbor_guard.cheats import CHEATS, preload
from bench.harbor_guard.shapes import SHAPES
from prorl_service.agents.harbor.directory.checks import NOTHING, ORACLE, oracle, scripted
from prorl_service.cli.harbor_runs import Candidate, probe_all
from prorl_service.server.settings import SandboxOptions, ServiceSettings
from tests.sandbox.sandboxes import new_provider

PARALLEL = 2
Rewards = Mapping[str, Mapping[str, float | None]]
"""Rewards by probe, then by shape."""


async def measure(cheats: Mapping[str, str]) -> tuple[Rewards, Mapping[str, Sequence[str]]]:
    """Returns what probes got, and the shapes on which each wins in place."""
    with tempfile.TemporaryDirectory() as directory:
        found = {shape: shape.directory(Path(directory)) for shape in SHAPES}
        candidates = [Candidate(one, one.task()) for one in found.values()]
        scripts = [scripted(name, script) for name, script in {NOTHING: "", **cheats}.items()]
        settings = ServiceSettings(sandboxes=SandboxOptions(warm_sandboxes=0))
        outcomes = await probe_all(
            candidates,
            lambda one: [*oracle(one), *scripts],
            settings,
            parallel=PARALLEL,
            say=lambda line: print(line, file=sys.stderr),
        )
        won: dict[str, list[str]] = {name: [] for name in cheats}
        async with new_provider("apptainer") as provider:
            for shape, task in found.items():
                for name in await in_place.all_wins(provider, shape, task, cheats, PARALLEL):
                    won[name].append(shape.name)
    rewards = {
        name: {one: next(o.reward for o in of if o.probe == name) for one, of in outcomes.items()}
        for name in (ORACLE, NOTHING, *cheats)
    }
    return rewards, won


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    cheats = {**CHEATS, **preload()}
    if quick:
        cheats = dict(list(cheats.items())[::6])
    rewards, won = asyncio.run(measure(cheats))
    rows = [
        {"script": name, **{shape: _cell(reward) for shape, reward in by_shape.items()},
         "wins in place": ", ".join(won.get(name, ()))}
        for name, by_shape in rewards.items()
    ]  # fmt: skip
    shapes = len(SHAPES)
    headline = {
        "shapes": shapes,
        "harbor_cheats": len(cheats),
        "harbor_cheats_tried": len(cheats) * shapes,
        "harbor_cheats_rewarded": sum(_gained(rewards[name]) for name in cheats),
        "harbor_cheats_rewarded_in_place": sum(map(len, won.values())),
        "harbor_cheats_without_reward": sum(_errors(rewards[name]) for name in cheats),
        "cheats_that_win_nowhere": sum(not shapes for shapes in won.values()),
        "oracle": _gained(rewards[ORACLE]) / shapes,
        "nothing": _gained(rewards[NOTHING]) / shapes,
    }
    if quick:
        print(*rows, headline, sep="\n")
    else:
        result.write("harbor_guard", rows, headline)


def _gained(by_shape: Mapping[str, float | None]) -> int:
    return sum(reward is not None and reward > 0 for reward in by_shape.values())


def _errors(by_shape: Mapping[str, float | None]) -> int:
    return sum(reward is None for reward in by_shape.values())


def _cell(reward: float | None) -> object:
    return "error" if reward is None else reward


if __name__ == "__main__":
    main()
