"""CPU time of the service for a page of a list, by filter, and what the shelf takes on disk.

Processor time of a real service process, over HTTP: reading, rows, JSON. Rare filters look at the
whole shelf; they are what is measured here, besides the first page.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from bench.eyes.fill import RUN, fill
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.schemas import Blame, FinishReason, RolloutState
from prorl_service.schemas.views import GroupOutcome, GroupQuery, RolloutQuery
from prorl_service.shelf.policy import ShelfOptions

CALLS = 20
Row = dict[str, object]


def measure(directory: Path, rollouts: int, shelf_mb: float) -> list[Row]:
    journal = directory / "journal.sqlite"
    began = time.process_time()
    asyncio.run(fill(journal, rollouts, ShelfOptions(shelf_mb=shelf_mb)))
    filling_s = time.process_time() - began
    size_mb = sum(one.stat().st_size for one in directory.glob("journal.sqlite.shelf*")) / 2**20
    options = ["--journal", str(journal), "--run", RUN, "--resume", "--sandbox", "process"]
    rows: list[Row] = [
        {
            "what": "disk",
            "rollouts": rollouts,
            "limit_mb": shelf_mb,
            "mb": round(size_mb, 1),
            "filling_ms_a_rollout": round(1e3 * filling_s / rollouts, 3),
        }
    ]
    log = directory / "service.log"
    with (
        local.service([], log=log, options=[*options, "--shelf-mb", str(shelf_mb)]) as service,
        RolloutClient(service.url) as client,
    ):
        process = psutil.Process(service.pid)
        for name, call in _calls(client):
            rows.append({"what": name, **_cost(process, call)})
    return rows


def _calls(client: RolloutClient) -> Iterator[tuple[str, Callable[[], Sequence[object]]]]:
    for name, values in _FILTERS.items():
        rollouts = RolloutQuery.model_validate(values)
        yield f"rollouts, {name}", partial(_rollouts, client, rollouts)
        groups = GroupQuery.model_validate(values)
        yield f"groups, {name}", partial(_groups, client, groups)
    for outcome in (GroupOutcome.INFORMATIVE, GroupOutcome.ALL_ONE):
        by_outcome = GroupQuery(outcome=[outcome])
        yield f"groups, outcome {outcome}", partial(_groups, client, by_outcome)
    yield "rollouts, 500 a page", partial(_rollouts, client, RolloutQuery(limit=500))
    yield "groups, 500 a page", partial(_groups, client, GroupQuery(limit=500))
    yield "rollouts, last page", partial(_rollouts, client, _last_page(client))
    yield "training", lambda: client.training().versions


def _rollouts(client: RolloutClient, query: RolloutQuery) -> Sequence[object]:
    return client.rollouts(query).rollouts


def _groups(client: RolloutClient, query: GroupQuery) -> Sequence[object]:
    return client.groups(query).groups


def _last_page(client: RolloutClient) -> RolloutQuery:
    query = RolloutQuery(limit=500)
    while (page := client.rollouts(query)).next is not None:
        query = RolloutQuery(limit=500, before=page.next)
    return query


_FILTERS: dict[str, dict[str, object]] = {
    "all": {},
    "run": {"run": RUN},
    "another run": {"run": "none"},
    "agent": {"agent": ["swe"]},
    "no agent": {"agent": ["none"]},
    "state failed": {"state": [RolloutState.FAILED]},
    "state cancelled": {"state": [RolloutState.CANCELLED]},
    "blame sandbox": {"blame": [Blame.SANDBOX]},
    "blame service (rare)": {"blame": [Blame.SERVICE]},
    "policy version": {"policy_version": 7},
    "reward range": {"reward_min": 0.5, "reward_max": 0.51},
    "reward, none": {"reward_min": 2.0},
    "task": {"task_id": "task7"},
    "group": {"group_id": "step7-group7"},
    "finish reason": {"finish_reason": [FinishReason.TIMEOUT]},
    "failed, swe, version": {"state": ["failed"], "agent": ["swe"], "policy_version": 7},
}


def _cost(process: psutil.Process, call: Callable[[], Sequence[object]]) -> Row:
    found = len(call())
    cpu_ms, wall_ms = [], []
    for _ in range(CALLS):
        before, began = _cpu_s(process), time.perf_counter()
        call()
        wall_ms.append(1e3 * (time.perf_counter() - began))
        cpu_ms.append(1e3 * (_cpu_s(process) - before))
    # The kernel counts in steps of 10 ms: a mean says more than a median.
    return {
        "found": found,
        "cpu_ms": round(sum(cpu_ms) / CALLS, 1),
        "wall_ms": round(median(wall_ms), 1),
    }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
