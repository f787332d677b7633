"""The groups of a training's steps: run or drawn, retried over failures that can pass, continued
over restarts of the service.

Blocking, in the trainer's thread. For trainers whose own engines sample, behind a `GatewayLease`,
with a version for each step's weights. Sends no weights.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any

from prorl_service.client.datasets import check_rows, rows_without_end
from prorl_service.client.failures import LostCalls, wait_for_restart
from prorl_service.client.metrics import metrics, outcome_of
from prorl_service.client.sampling import StepDraws
from prorl_service.client.trainable import Overlong, checked, failure_of, shaped_reward
from prorl_service.client.trainers_service import (
    LEASE_S,
    ServiceForgot,
    TrainersService,
    restarts_noticed,
    run_groups,
)
from prorl_service.schemas import Group, Rollout, Task
from prorl_service.schemas.sampling import DrawSpec, SamplerSpec


class StepGroups:
    def __init__(
        self,
        service: TrainersService,
        tasks: Iterable[Task],
        *,
        seed: int,
        groups_per_step: int,
        spec: SamplerSpec | None,
        **of_group: Any,
    ) -> None:
        """`tasks`: a sequence is shuffled by `seed` in each round; an iterator's are taken in its
        order. `spec`: of the sampler that draws informative groups; None: all are trained on.
        `of_group`: `n`, and other fields of each group."""
        self._service, self._tasks, self._size = service, tasks, groups_per_step
        numbered = zip(count(), rows_without_end(tasks, seed), strict=False)
        self._candidates = (
            Group(
                group_id=f"{service.run_id}-{number}",
                task=task,
                lease_s=LEASE_S if spec is None else None,
                **of_group,
            )
            for number, task in numbered
        )
        self._calls = LostCalls()
        self._number = 0
        self._draws: StepDraws | None = None
        if spec is not None:
            self._draws = StepDraws(
                service.run_id, spec, self._candidates, deadline_s=service.deadline_s
            )

    def check(self) -> None:
        """Raises `BadRows` unless all tasks can run. An iterator's are checked when they are
        submitted."""
        if isinstance(self._tasks, Sequence):
            rows = ((f"tasks[{number}]", task) for number, task in enumerate(self._tasks))
            with self._service.client() as client:
                check_rows(rows, lambda task: task, client.check_tasks)

    def run(self, *, engine: str, version: int) -> list[list[Rollout]]:
        """Returns the rollouts of the next step's groups; those have failed whose tokens are not of
        the trainer's `engine` (named as backends are), or not of its weights `version`, if they
        are drawn, not of any up to that. Raises `RolloutsFailed`, `AllGroupsFail`, `PolicyTaken`.
        """
        deadline = time.monotonic() + self._service.deadline_s
        versions = range(version if self._draws is None else 0, version + 1)
        while True:
            groups = [
                [checked(one, engine=engine, versions=versions) for one in group]
                for group in self._attempt(version, deadline)
            ]
            failures = [failure_of(one) for group in groups for one in group]
            if not self._calls.is_to_retry(failures, deadline):
                self._calls.count(failures)
                return groups

    def _attempt(self, version: int, deadline: float) -> list[list[Rollout]]:
        groups = [] if self._draws else list(islice(self._candidates, self._size))
        ended: dict[str, Rollout] = {}
        self._number += 1
        while True:
            try:
                if self._draws is not None:
                    return self._draw(self._draws, version, deadline)
                rollouts = iter(run_groups(self._service, groups, ended, deadline))
                return [list(islice(rollouts, group.n)) for group in groups]
            except ServiceForgot:
                wait_for_restart(deadline)
                self._service.claim()

    def _draw(self, draws: StepDraws, version: int, deadline: float) -> list[list[Rollout]]:
        spec = DrawSpec(
            target=self._size,
            deadline_s=max(deadline - time.monotonic(), 1.0),
            policy_version=version,
        )
        with self._service.client() as client, restarts_noticed():
            return draws.draw(client, f"draw-{self._number}", spec)[1]

    def metrics(
        self, groups: Sequence[Sequence[Rollout]], *, overlong: Overlong, version: int
    ) -> dict[str, float]:
        """Returns those of a step's groups; the mean reward is of shaped ones."""
        outcomes = [
            replace(outcome_of(one), reward=shaped_reward(one, overlong))
            for group in groups
            for one in group
        ]
        drawn = {} if self._draws is None else self._draws.metrics()
        return (metrics(outcomes, version) if outcomes else {}) | drawn

    def end(self) -> None:
        """Cancels groups that were carried over."""
        if self._draws is not None:
            self._service.tell(lambda client: client.delete_sampler(self._service.run_id))
