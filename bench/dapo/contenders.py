"""The contenders, by name."""

from collections.abc import Callable, Iterator

from bench.dapo import workload
from bench.dapo.strategies import Batches, Refill, Service
from bench.dapo.training import Make
from bench.dapo.workload import Plan
from prorl_service.schemas import Group
from prorl_service.schemas.sampling import SamplerSpec

SYNC = "synchronous, batches of T"
SYNC_3T = "synchronous, batches of 3T"
"""Size of the batches in verl's recipe of DAPO."""
REFILL = "refill, surplus thrown away"
REQUEUE = "refill, re-queue (ProRL Agent)"
LENT = "ours, engines lent to training"
OURS = "ours"

Contender = Callable[[Plan, int], Make]
"""Function that makes a contender from a plan and a seed."""


def _tasks(plan: Plan, seed: int) -> Iterator[Group]:
    return workload.candidates(seed, plan.n)


def _batches(times: int) -> Contender:
    return lambda plan, seed: (
        lambda _, client: Batches(client, plan, _tasks(plan, seed), times * plan.target)
    )


def _refill(*, requeue: bool) -> Contender:
    return lambda plan, seed: (
        lambda _, client: Refill(client, plan, _tasks(plan, seed), requeue=requeue)
    )


def _service(*, lends_engines: bool) -> Contender:
    def contender(plan: Plan, seed: int) -> Make:
        spec = SamplerSpec(surplus="carry")
        tasks = _tasks(plan, seed)
        return lambda url, _: Service(
            url, plan, tasks, spec, seed=seed, lends_engines=lends_engines
        )

    return contender


CONTENDERS: dict[str, Contender] = {
    SYNC: _batches(1),
    SYNC_3T: _batches(3),
    REFILL: _refill(requeue=False),
    REQUEUE: _refill(requeue=True),
    LENT: _service(lends_engines=True),
    OURS: _service(lends_engines=False),
}
