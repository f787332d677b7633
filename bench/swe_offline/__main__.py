"""The offline SWE instances graded twice: by our grader, and by SWE-bench's own method.

Patches: the reference, one that fixes nothing, half of the reference, and every cheat on every
instance. An oracle resolves them over HTTP as well. Draws which cheats each grader takes for a fix
to bench/results/swe_offline.png. Takes half an hour on two cores.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from statistics import median
from time import perf_counter

from bench import result
from bench.plots.drawing import redraw
from bench.swe_offline.adversarial_patches import CHEATS
from bench.swe_offline.reference_grader import Comparison, compare, patches
from prorl_service.agents.swe.data import SweData
from prorl_service.agents.swe.evaluation import grade_patch
from prorl_service.sandbox.base import Sandbox
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from recipes.swebench import oracle_policy
from recipes.swebench.grading import admit, sandbox_of
from recipes.swebench.offline import build_all, default_directory
from recipes.swebench.rows import SweInstance

AT_ONCE = 2


async def timed(row: SweInstance, sandboxes: BubblewrapProvider) -> tuple[float, float]:
    """Grades the reference patch; returns the seconds that this takes and those of one of the two
    runs of the tests, with its sandbox."""
    ends = []

    @asynccontextmanager
    async def open_sandbox() -> AsyncIterator[Sandbox]:
        async with sandbox_of(row, sandboxes) as sandbox:
            yield sandbox
        ends.append(perf_counter())

    started = perf_counter()
    await grade_patch(open_sandbox, SweData.model_validate(row.task().data), row.patch.encode())
    return perf_counter() - started, ends[0] - started


async def admission(rows: Sequence[SweInstance]) -> list[tuple[float, float]]:
    """Returns what `timed` does for each instance, one after the other. Exits unless each is
    admitted as it is."""
    seconds = []
    async with BubblewrapProvider() as sandboxes:
        for row in rows:
            seconds.append(await timed(row, sandboxes))
            admitted = await admit(row, sandboxes)
            if admitted.row != row:
                raise SystemExit(f"{row.instance_id} is not admitted as it is: {admitted}")
            print(f"admitted {row.instance_id}, graded in {seconds[-1][0]:.1f} s", flush=True)
    return seconds


async def compare_all(rows: Sequence[SweInstance]) -> dict[str, list[Comparison]]:
    """Returns the comparisons, keyed by the patch's name."""
    free = asyncio.Semaphore(AT_ONCE)
    compared: dict[str, list[Comparison]] = {}
    async with BubblewrapProvider() as sandboxes:

        async def one(row: SweInstance, name: str, patch: str) -> Comparison:
            async with free:
                return await compare(row, name, patch, sandboxes)

        for row in rows:
            named = patches(row, cheats=True)
            for done in await asyncio.gather(*(one(row, *item) for item in named.items())):
                compared.setdefault(done.patch, []).append(done)
            print(f"compared {row.instance_id}", flush=True)
    return compared


def of_patch(name: str, compared: Sequence[Comparison]) -> dict[str, object]:
    outcomes = Counter(one.ours.outcome.value for one in compared)
    reasons = Counter(one.reason for one in compared if not one.agree)
    return {
        "patch": name,
        "instances": len(compared),
        "resolved": sum(one.ours.resolved for one in compared),
        "by SWE-bench": sum(one.second.resolved for one in compared),
        "ours": ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()),
        "what ours saw": reasons.most_common(1)[0][0] if reasons else "",
    }


def of_oracle(rewards: Sequence[float | None]) -> dict[str, object]:
    solved = rewards.count(1.0)
    return {
        "patch": "of the oracle, over HTTP",
        "instances": len(rewards),
        "resolved": solved,
        "by SWE-bench": None,
        "ours": f"{solved} resolved",
        "what ours saw": "",
    }


def headline(
    compared: Mapping[str, Sequence[Comparison]],
    seconds: Sequence[tuple[float, float]],
    rewards: Sequence[float | None],
) -> dict[str, object]:
    """`agreement_with_second_grader` is over honest patches: on cheats the graders should
    differ. `swe_grading_cost_ratio` compares with a single run of the tests."""
    cheats = [one for name in CHEATS for one in compared[name]]
    honest = [one for name in compared if name not in CHEATS for one in compared[name]]
    return {
        "instances": len(seconds),
        "gold_resolved": sum(one.ours.resolved for one in compared["reference"]),
        "empty_resolved": sum(one.ours.resolved for one in compared["nothing"]),
        "partial_resolved": sum(one.ours.resolved for one in compared["partial"]),
        "cheats_tried": len(cheats),
        "cheats_resolved": sum(one.ours.resolved for one in cheats),
        "cheats_resolved_by_second_grader": sum(one.second.resolved for one in cheats),
        "oracle_resolved": rewards.count(1.0),
        "grading_s_per_instance_p50": round(median(both for both, _ in seconds), 2),
        "swe_grading_cost_ratio": round(median(both / one for both, one in seconds), 2),
        "agreement_with_second_grader": sum(one.agree for one in honest) / len(honest),
    }


def main() -> None:
    rows = build_all(default_directory())
    seconds = asyncio.run(admission(rows))
    rollouts = asyncio.run(oracle_policy.roll_out(rows, sandbox="bubblewrap"))
    rewards = [rollout.reward for rollout in rollouts]
    compared = asyncio.run(compare_all(rows))
    table = [of_patch(name, one) for name, one in compared.items()]
    table.insert(3, of_oracle(rewards))
    result.write("swe_offline", table, headline(compared, seconds, rewards))
    redraw("swe_offline")


if __name__ == "__main__":
    main()
