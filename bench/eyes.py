"""What looking at rollouts costs: the service's processor time, the page's size, lists, the disk.

`cost`: the load of `bench.load` on a service without a shelf, and on one with its page open in a
real browser, which gets idle time only: people have it on another machine. `page`: what a browser
loads. `lists`: a page of each list of 100,000 rollouts by rare and by common filters, over HTTP.
Nothing else should run meanwhile. A quarter of an hour.
"""

import asyncio
import os
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import httpx
import psutil

from bench import frame
from bench.load.ours import cpu_s, turn_ms
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.net import credentials
from prorl_service.page.files import STATIC
from prorl_service.schemas import (
    Blame,
    FinishReason,
    Group,
    Rollout,
    RolloutState,
    Sampling,
    ToolCallRecord,
    Trajectory,
)
from prorl_service.schemas.views import GroupOutcome, GroupQuery, RolloutQuery, RolloutSort
from prorl_service.shelf.policy import ShelfOptions
from prorl_service.shelf.shelving import Now
from tests import builders
from tests.page.browser import Browser
from tests.page.chromium import browser
from tests.page.visit import show, sign_in
from tests.shelf.shelved import accept, end, ended, shelf_at, submitted

ROUNDS, LATENCY_MS = 6, 50
SHOWN = {"now": "Last 15 minutes", "groups": "all 1", "timeline": "slots"}
"""Views of the open page, one a round, and a text of each: status every 2 s, lists, all events."""
ROLLOUTS, QUICK_ROLLOUTS, SHELF_MB, CALLS = 100_000, 1024, 512.0, 20
RUN, SIBLINGS, GROUPS_A_STEP, TOKENS, PROMPT_TOKENS = "bench", 8, 32, 2048, 256
AGENTS = ("math", "code", "swe", "stem")
FATES: dict[str, dict[str, object]] = {
    "done": {},
    "long": {"reason": FinishReason.TIMEOUT},
    "failed": {"state": RolloutState.FAILED, "blame": Blame.SANDBOX},
    "ours": {"state": RolloutState.FAILED, "blame": Blame.SERVICE},
    "cancelled": {"state": RolloutState.CANCELLED},
}
SHARES = (0.9, 0.08, 0.0177, 0.0003, 0.002)
ERROR, RARELY = "sqlite3.OperationalError: unable to open database file\n", 0.002

# --- CPU of a turn ------------------------------------------------------------------------------


def cost(quick: bool) -> frame.Found:
    with TemporaryDirectory() as name, browser() as chromium:
        _give_idle_time()
        directory = Path(name)
        ways = {
            "without": partial(_without, directory),
            "with_page": partial(_with_page, directory, chromium),
        }
        took = frame.alternate(ways, 1 if quick else ROUNDS)
    without, shown = (round(median(ms), 3) for ms in took.values())
    row = {"what": "CPU of a turn, median", "without_ms": without, "with_ms": shown}
    return frame.Found([row], {"cpu_ratio_with_page": round(shown / without, 3)})


def _without(directory: Path, number: int) -> float:
    return turn_ms(directory / f"without{number}", "--shelf-mb", "0", latency_ms=LATENCY_MS)


def _with_page(directory: Path, chromium: Browser, number: int) -> float:
    view = list(SHOWN)[number % len(SHOWN)]
    beside = partial(_open_page, chromium, view)
    return turn_ms(directory / f"with{number}", latency_ms=LATENCY_MS, beside=beside)


@contextmanager
def _open_page(chromium: Browser, view: str, url: str) -> Iterator[None]:
    tab = chromium.tab()
    _give_idle_time()
    sign_in(tab, url, credentials.make_own_token())
    tab.problems.clear()  # the answer that asked for the token
    show(tab, view, SHOWN[view])
    yield
    tab.evaluate("0")  # which reads what the page has said meanwhile
    assert not tab.problems, tab.problems
    tab.open("about:blank")


def _give_idle_time() -> None:
    """Has the browser run when nothing else does."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if "chrom" in process.name():
                os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))


# --- the page -----------------------------------------------------------------------------------


def page(_: bool) -> frame.Found:
    """Adds up all files of the page, as they are sent and as they are."""
    static = Path(str(STATIC))
    files = [*static.rglob("*.js"), *static.rglob("*.css")]
    names = [str(file.relative_to(static)) for file in files]
    sent = whole = vendor = 0
    with (
        TemporaryDirectory() as directory,
        local.service([], log=Path(directory, "log")) as service,
        httpx.Client(base_url=service.url) as http,
    ):
        for path in ("/", *(f"/page/{one}" for one in names)):
            answer = http.get(path).raise_for_status()
            sent += answer.num_bytes_downloaded
            whole += len(answer.content)
            vendor += len(answer.content) if "/vendor/" in path else 0
    kb = {"transferred_kb": sent, "kb": whole, "third_party_kb": vendor}
    row = {"what": "page", "files": len(names) + 1}
    row |= {figure: round(size / 1e3, 1) for figure, size in kb.items()}
    return frame.Found([row], {"page_kb": row["transferred_kb"], "page_kb_uncompressed": row["kb"]})


# --- lists --------------------------------------------------------------------------------------


def lists(quick: bool) -> frame.Found:
    rollouts = QUICK_ROLLOUTS if quick else ROLLOUTS
    with TemporaryDirectory() as name:
        journal = Path(name) / "journal.sqlite"
        asyncio.run(_fill(journal, rollouts))
        shelves = Path(name).glob("journal.sqlite.shelf*")
        mb = round(sum(one.stat().st_size for one in shelves) / 2**20, 1)
        disk: frame.Row = {"what": "disk", "rollouts": rollouts, "limit_mb": SHELF_MB, "mb": mb}
        options = ["--journal", str(journal), "--run", RUN, "--resume", "--sandbox", "process"]
        options += ["--shelf-mb", str(SHELF_MB)]
        with (
            local.service([], log=Path(name, "log"), options=options) as service,
            RolloutClient(service.url) as client,
        ):
            costs = {what: _cpu_ms(service.pid, call) for what, call in _calls(client).items()}
    of_searches = [ms for what, ms in costs.items() if what.startswith(SEARCH)]
    of_lists = [ms for what, ms in costs.items() if not what.startswith(SEARCH)]
    headline = {
        "list_ms_at_100k": max(of_lists),
        "search_ms_at_100k": max(of_searches),
        "shelf_mb_at_100k": mb,
    }
    rows = [{"what": what, "cpu_ms": ms} for what, ms in costs.items()]
    return frame.Found([disk, *rows], headline)


async def _fill(path: Path, rollouts: int) -> None:
    """Fills a shelf: `SIBLINGS` rollouts a group, `GROUPS_A_STEP` groups a policy version."""
    rng = random.Random(0)
    async with shelf_at(path, ShelfOptions(shelf_mb=SHELF_MB), run=RUN) as (journal, shelf):
        journal.claim(RUN, resume=True)
        for step in range(rollouts // (SIBLINGS * GROUPS_A_STEP)):
            shelf.set_now(Now(policy_version=step, model="digest"))
            groups = [_group(rng, step, number) for number in range(GROUPS_A_STEP)]
            await accept(journal, *groups, created_at=_created_at(step))
            await end(journal, *(_ended(rng, one, i, step) for one in groups for i in range(one.n)))
            await journal.forget([one.group_id for one in groups])


def _created_at(step: int) -> float:
    return 1.7e9 + 60 * step


def _group(rng: random.Random, step: int, number: int) -> Group:
    name, task = f"step{step}-group{number}", f"task{rng.randrange(5000)}"
    text = "What is to be done? " * 20
    return submitted(name, SIBLINGS, agent=rng.choice(AGENTS), task_id=task, text=text)


def _ended(rng: random.Random, group: Group, index: int, step: int) -> Rollout:
    (fate,) = rng.choices([*FATES.values()], SHARES)
    known = {"reward": round(rng.random(), 2), **fate}
    rollout = ended(group, index, version=step, created_at=_created_at(step), **known)  # type: ignore[arg-type]
    reason = FinishReason(str(known.get("reason", FinishReason.FINISHED)))
    return rollout.model_copy(update={"trajectory": _trajectory(rng, step, reason)})


def _trajectory(rng: random.Random, step: int, reason: FinishReason) -> Trajectory:
    """Half of its tokens are sampled, half are tool output."""
    half = TOKENS // 2
    made = builders.segment(
        [1] * half + [0] * half,
        step,
        prompt_ids=[rng.randrange(150_000) for _ in range(PROMPT_TOKENS)],
        response_ids=[rng.randrange(150_000) for _ in range(TOKENS)],
        logprobs=array("f", [-rng.expovariate(1) for _ in range(half)] + [0.0] * half).tolist(),
    )
    call = ToolCallRecord(
        name="bash",
        arguments={"command": "ls"},
        output="README.md\n" * 20 + ERROR * (rng.random() < RARELY),
        duration_s=0.1,
    )
    text = "I look at the files first. " * 10
    turns = [
        builders.turn(0, start, start + half // 4, text=text, tool_calls=[call])
        for start in range(0, half, half // 4)
    ]
    return Trajectory(segments=[made], turns=turns, finish_reason=reason, sampling=Sampling())


Call = Callable[[], Sequence[object]]
SEARCH, SEARCHED = "rollouts, text:", 25
"""The first words of what searches are called, and the page's rows of one."""
TEXTS = {
    "all have it": "look at the files first",
    "all have it, a letter": "f",
    "some have it": "unable to open database file",
    "none has it": "no such words",
}
FILTERS: dict[str, dict[str, object]] = {
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
    "500 a page": {"limit": 500},
}


def _calls(client: RolloutClient) -> dict[str, Call]:
    def rollouts(query: RolloutQuery) -> Call:
        return lambda: client.rollouts(query).rollouts

    def groups(query: GroupQuery) -> Call:
        return lambda: client.groups(query).groups

    calls: dict[str, Call] = {}
    for name, values in FILTERS.items():
        calls[f"rollouts, {name}"] = rollouts(RolloutQuery.model_validate(values))
        calls[f"groups, {name}"] = groups(GroupQuery.model_validate(values))
    for outcome in (GroupOutcome.INFORMATIVE, GroupOutcome.ALL_ONE):
        calls[f"groups, outcome {outcome}"] = groups(GroupQuery(outcome=[outcome]))
    calls["rollouts, last page"] = rollouts(_last_page(client))
    for sort in (RolloutSort.WORST, RolloutSort.LONGEST):
        calls[f"rollouts, {sort.value}"] = rollouts(RolloutQuery(sort=sort))
    calls["rollouts, counted"] = rollouts(RolloutQuery(count=True))
    calls["rollouts, part of a task's name"] = rollouts(RolloutQuery(task_id="*sk12*", count=True))
    for name, text in TEXTS.items():
        query = RolloutQuery(text=text, count=True, limit=SEARCHED)
        calls[f"{SEARCH} {name}"] = rollouts(query)
    calls["tasks"] = lambda: client.tasks().tasks
    calls["training"] = lambda: client.training().versions
    return calls


def _last_page(client: RolloutClient) -> RolloutQuery:
    query = RolloutQuery(limit=500)
    while (found := client.rollouts(query)).next is not None:
        query = RolloutQuery(limit=500, before=found.next)
    return query


def _cpu_ms(pid: int, call: Call) -> float:
    call()  # to warm up
    before_s = cpu_s(pid)
    for _ in range(CALLS):
        call()
    # The kernel counts in steps of 10 ms: a mean says more than a median.
    return round(1e3 * (cpu_s(pid) - before_s) / CALLS, 1)


if __name__ == "__main__":
    frame.run("eyes", {"cost": cost, "page": page, "lists": lists})
