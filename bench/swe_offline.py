"""The offline SWE instances graded by our grader and by SWE-bench's own method. Half an hour.

Patches: the reference, one that fixes nothing, half of the reference, and every cheat on every
instance. An oracle resolves them over HTTP as well. `agreement_with_second_grader` is over honest
patches: on cheats the graders should differ.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypeVar

from bench import frame
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from recipes.swebench import oracle_policy
from recipes.swebench.grading import graded
from recipes.swebench.offline import build_all, default_directory
from recipes.swebench.rows import SweInstance
from tests.recipes.swebench.cheats import OFFLINE
from tests.recipes.swebench.reference_grader import Comparison, compare, patches

AT_ONCE = 2
Verdict = TypeVar("Verdict")


def instances(quick: bool) -> list[SweInstance]:
    rows = build_all(default_directory(), progress=print)
    return rows[:1] if quick else rows


async def grade_all(
    rows: Sequence[SweInstance],
    patches_of: Callable[[SweInstance], Mapping[str, str]],
    grade: Callable[[SweInstance, str, str, BubblewrapProvider], Awaitable[Verdict]],
    at_once: int,
) -> dict[str, list[Verdict]]:
    """Returns the verdicts on each patch, keyed by its name."""
    free = asyncio.Semaphore(at_once)
    verdicts: dict[str, list[Verdict]] = {}
    async with BubblewrapProvider() as sandboxes:

        async def one(row: SweInstance, name: str, patch: str) -> Verdict:
            async with free:
                return await grade(row, name, patch, sandboxes)

        for row in rows:
            named = patches_of(row)
            done = await asyncio.gather(*(one(row, *item) for item in named.items()))
            for name, verdict in zip(named, done, strict=True):
                verdicts.setdefault(name, []).append(verdict)
            print(f"  graded {row.instance_id}", flush=True)
    return verdicts


async def timed(rows: Sequence[SweInstance]) -> list[float]:
    """Returns the seconds to grade each reference patch, alone."""
    seconds = []
    async with BubblewrapProvider() as sandboxes:
        for row in rows:
            began = perf_counter()
            await graded(row, row.patch, sandboxes)
            seconds.append(perf_counter() - began)
    return seconds


def of_patch(name: str, compared: Sequence[Comparison]) -> frame.Row:
    reasons = Counter(one.reason for one in compared if not one.agree)
    return {
        "patch": name,
        "instances": len(compared),
        "resolved": sum(one.ours.resolved for one in compared),
        "by SWE-bench": sum(one.second.resolved for one in compared),
        "what ours saw": reasons.most_common(1)[0][0] if reasons else "",
    }


def of_oracle(rewards: Sequence[float | None]) -> frame.Row:
    solved = rewards.count(1.0)
    known = {"patch": "of the oracle, over HTTP", "instances": len(rewards), "resolved": solved}
    return {**known, "by SWE-bench": None, "what ours saw": ""}


def measure(quick: bool) -> frame.Found:
    rows = instances(quick)
    seconds = asyncio.run(timed(rows))
    rollouts = asyncio.run(oracle_policy.roll_out(rows, sandbox="bubblewrap"))
    rewards = [rollout.reward for rollout in rollouts]
    tried = partial(patches, cheats=not quick)
    compared = asyncio.run(grade_all(rows, tried, compare, AT_ONCE))
    table = [of_patch(name, one) for name, one in compared.items()]
    table.insert(3, of_oracle(rewards))
    cheats = [one for name in OFFLINE for one in compared.get(name, ())]
    honest = [one for name in compared if name not in OFFLINE for one in compared[name]]
    headline = {
        "instances": len(seconds),
        "gold_resolved": sum(one.ours.resolved for one in compared["reference"]),
        "empty_resolved": sum(one.ours.resolved for one in compared["nothing"]),
        "partial_resolved": sum(one.ours.resolved for one in compared["partial"]),
        "cheats_tried": len(cheats),
        "cheats_resolved": sum(one.ours.resolved for one in cheats),
        "cheats_resolved_by_second_grader": sum(one.second.resolved for one in cheats),
        "oracle_resolved": rewards.count(1.0),
        "grading_s_per_instance_p50": round(median(seconds), 2),
        "agreement_with_second_grader": sum(one.agree for one in honest) / len(honest),
    }
    return frame.Found(table, headline)


if __name__ == "__main__":
    frame.run("swe_offline", {"swe_offline": measure})
