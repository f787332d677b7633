"""Runs every task with every seed, and keeps each rollout in a file once it has a verdict.

Rollouts with a verdict are not run again, so an interrupted evaluation continues. A rollout without
one (engine, sandbox or grader failed) is retried by the next run, and counts as failed until then.
"""

import json
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.client.trainable import component_means
from prorl_service.schemas import MAX_INT32, Blame, ErrorInfo, Group, Rollout, Task
from prorl_service.utils.files import write_whole
from recipes.common.evaluation.pass_at_k import Score, Share, pass_at_k, score
from recipes.common.settings import BadSettings, Evaluation

LEASE_S = 300.0
LONGEST_S = 30 * 86_400.0
"""Seconds to wait for rollouts, which have budgets of their own and may queue for long."""


@dataclass(frozen=True, slots=True)
class Verdict:
    is_solved: bool
    components: Mapping[str, float]


class Records:
    """One file per rollout in `directory`: the service's `Rollout` on one line, without tokens."""

    def __init__(self, directory: Path, identity: Mapping[str, Any]) -> None:
        """`identity`: what all verdicts of one evaluation share. Raises `BadSettings` if the
        directory has verdicts of another evaluation."""
        self._rollouts = directory / "rollouts"
        self._rollouts.mkdir(parents=True, exist_ok=True)
        path = directory / "evaluation.json"
        if path.exists():
            known = json.loads(path.read_text())
            _check_same(known, json.loads(json.dumps(identity)), directory)
        write_whole(path, json.dumps(identity, indent=2) + "\n")

    def verdict(self, task_id: str, seed: int) -> Verdict | None:
        """Returns the kept verdict, or None."""
        path = self._path(task_id, seed)
        if not path.exists():
            return None
        rollout = Rollout.model_validate_json(path.read_text())
        return Verdict(rollout.reward == 1.0, rollout.reward_components)

    def put(self, rollout: Rollout, seed: int) -> None:
        trajectory = rollout.trajectory and rollout.trajectory.model_copy(update={"segments": []})
        kept = rollout.model_copy(update={"trajectory": trajectory})
        write_whole(self._path(rollout.task_id, seed), kept.model_dump_json() + "\n")

    def _path(self, task_id: str, seed: int) -> Path:
        return self._rollouts / f"{task_id}.{seed}.json"


@dataclass(frozen=True, slots=True)
class Result:
    """`pass_at_k`: keyed by k. `components`: means over the rollouts that have them. `failures`:
    errors of this run's rollouts without a verdict."""

    score: Score
    pass_at_k: dict[int, Share]
    components: dict[str, float]
    failures: Sequence[ErrorInfo]


def evaluate(
    settings: Evaluation, tasks: Sequence[Task], identity: Mapping[str, Any], url: str
) -> Result:
    """Runs what is missing, and scores all. `identity`: see `Records`, which are in the output.
    Raises `BadSettings` and `ServiceCallError`."""
    records = Records(settings.output, identity)
    failures = run(settings, tasks, records, url)
    verdicts = {
        task.task_id: [records.verdict(task.task_id, seed) for seed in range(settings.seeds)]
        for task in tasks
    }
    solved = {
        task_id: [None if one is None else one.is_solved for one in seeds]
        for task_id, seeds in verdicts.items()
    }
    return Result(
        score=score(solved),
        pass_at_k={k: pass_at_k(solved, k) for k in settings.pass_at_k},
        components=component_means(
            one.components for seeds in verdicts.values() for one in seeds if one
        ),
        failures=failures,
    )


def run(settings: Evaluation, tasks: Sequence[Task], records: Records, url: str) -> list[ErrorInfo]:
    """Runs the rollouts without a verdict. Returns the errors of those that still have none.

    Raises `ServiceCallError`.
    """
    missing = [
        (task, seed)
        for seed in range(settings.seeds)
        for task in tasks
        if records.verdict(task.task_id, seed) is None
    ]
    bar = tqdm(total=len(tasks) * settings.seeds, desc="rollouts", dynamic_ncols=True)
    bar.update(bar.total - len(missing))
    failures, solved = [], 0
    with RolloutClient(url) as client, bar:
        for rollout, seed in _rolled_out(client, settings, missing):
            bar.update()
            if rollout.reward is not None or _is_own_failure(rollout.error):
                records.put(rollout, seed)
                solved += rollout.reward == 1.0
            elif rollout.error is not None:
                failures.append(rollout.error)
            bar.set_postfix_str(f"solved {solved}, failed {len(failures)}")
    return failures


def _is_own_failure(error: ErrorInfo | None) -> bool:
    """Returns whether the agent is to blame (out of time, or an impossible request): a verdict."""
    return error is not None and error.blame is Blame.AGENT


def _rolled_out(
    client: RolloutClient, settings: Evaluation, wanted: Sequence[tuple[Task, int]]
) -> Iterator[tuple[Rollout, int]]:
    """Yields each rollout as it ends. Rollouts that are no longer awaited end with their lease."""
    prefix = uuid.uuid4().hex[:12]
    seeds = {}
    for number, (task, seed) in enumerate(wanted):
        group = Group(
            group_id=f"{prefix}-{number}",
            task=task,
            sampling=settings.sampling.model_copy(
                update={"seed": _seed_of(settings.seed, task.task_id, seed)}
            ),
            limits=settings.agent.limits,
            lease_s=LEASE_S,
        )
        client.submit([group])
        seeds[group.rollout_id(0)] = seed
    for rollout in client.stream(list(seeds), LONGEST_S):
        yield rollout, seeds[rollout.rollout_id]
        with suppress(ServiceCallError):  # the group expires by itself
            client.acknowledge([rollout.group_id])


def _seed_of(base: int, task_id: str, seed: int) -> int:
    """Derives a seed for each task: with one for all, tasks would share their luck."""
    return zlib.crc32(f"{base}/{task_id}/{seed}".encode()) & MAX_INT32


def _check_same(known: Mapping[str, Any], now: Mapping[str, Any], directory: Path) -> None:
    different = [name for name in {*known, *now} if known.get(name) != now.get(name)]
    if different:
        changes = (f"{name}: {known.get(name)} > {now.get(name)}" for name in sorted(different))
        raise BadSettings(
            f"{directory} has verdicts of another evaluation; {'; '.join(changes)}",
            hint="set output=DIRECTORY to another directory",
        )
