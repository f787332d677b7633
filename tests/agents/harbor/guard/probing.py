"""Runs cheats against each shape of verifier twice: graded by the service, and by the same verifier
in the agent's own sandbox, where a cheat must win on one shape at least."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prorl_service.agents.harbor.directory.checks import NOTHING, ORACLE, oracle, scripted
from prorl_service.cli.harbor_runs import HarborCandidate, probe_all
from prorl_service.server.settings import SandboxOptions, ServiceSettings
from tests.agents.harbor.guard import in_place
from tests.agents.harbor.guard.shapes import SHAPES
from tests.sandbox.sandboxes import new_provider

PARALLEL = 2
Rewards = Mapping[str, Mapping[str, float | None]]
"""Rewards by probe, then by shape."""


async def measure(
    cheats: Mapping[str, str], say: Callable[[str], None] = lambda _: None
) -> tuple[Rewards, Mapping[str, Sequence[str]]]:
    """Returns what probes got, and the shapes on which each wins in place. `say`: for progress."""
    with tempfile.TemporaryDirectory() as directory:
        found = {shape: shape.directory(Path(directory)) for shape in SHAPES}
        candidates = [HarborCandidate(one, one.task()) for one in found.values()]
        scripts = [scripted(name, script) for name, script in {NOTHING: "", **cheats}.items()]
        settings = ServiceSettings(sandboxes=SandboxOptions(warm_sandboxes=0))
        outcomes = await probe_all(
            candidates,
            lambda one: [*oracle(one), *scripts],
            settings,
            parallel=PARALLEL,
            say=say,
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
