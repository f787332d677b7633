"""What the service guarantees under faults, measured. Six minutes.

`outage`: the only engine is away for a minute while rollouts are queued and in flight; the service
has its default settings. `journal`: 50,000 ended rollouts of 6 kB are acknowledged in one call
while others submit. The guarantees and their tests are in tests/guarantees.json.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import frame
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.rollouts.journal.threads import SPARE_PAGES
from prorl_service.schemas import Group, Limits, Message, RolloutState, Task
from tests.rollouts.journals import accepted, ended

OUTAGE_S, QUICK_OUTAGE_S, WAIT_S = 60.0, 5.0, 600.0
GROUPS, GROUP_SIZE = 12, 8
ROLLOUTS, QUICK_ROLLOUTS = 50_000, 2000
RESULT_BYTES = 6000
AT_ONCE = 50
"""Groups accepted together while the journal is filled."""
PAUSE_S = 0.02


def _rows(figures: frame.Row) -> list[frame.Row]:
    return [{"what": name, "found": value} for name, value in figures.items()]


# --- an engine that is away ---------------------------------------------------------------------


def outage(quick: bool) -> frame.Found:
    outage_s = QUICK_OUTAGE_S if quick else OUTAGE_S
    groups = [_group(number) for number in range(GROUPS)]
    with TemporaryDirectory() as name:
        directory = Path(name)
        build_tiny_model(directory / "model")
        port = local.free_port()
        log = directory / "engine.log"
        with (
            local.service([f"http://127.0.0.1:{port}"], log=directory / "service.log") as service,
            RolloutClient(service.url) as client,
        ):
            with local.engine(directory / "model", log=log, port=port) as engine:
                _until(lambda: any(one.state == "healthy" for one in client.backends()))
                client.submit(groups)
                _until(lambda: any(one.in_flight for one in client.backends()))
                engine.kill()
            time.sleep(outage_s)
            with local.engine(directory / "model", log=log, port=port):
                ids = [one for group in groups for one in group.rollout_ids()]
                rollouts = client.wait(ids, WAIT_S)
    failed = sum(one.state is not RolloutState.DONE for one in rollouts)
    figures = {
        "outage_s": outage_s,
        "outage_rollouts": len(rollouts),
        "outage_failed": failed,
    }
    return frame.Found(_rows(figures), {"outage_failed": failed})


def _group(number: int) -> Group:
    messages = [Message(role="user", content=f"What is {number} + 1?")]
    task = Task(task_id=f"t{number}", agent="math", messages=messages, data={"answer": "1"})
    limits = Limits(max_turns=1, max_response_tokens=1500)
    return Group(group_id=f"g{number}", task=task, n=GROUP_SIZE, limits=limits)


def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.02)


# --- a large acknowledgement --------------------------------------------------------------------


def journal(quick: bool) -> frame.Found:
    figures = asyncio.run(_acknowledged(QUICK_ROLLOUTS if quick else ROLLOUTS))
    return frame.Found(_rows(figures), {"acknowledged_s": figures["acknowledged_s"]})


async def _acknowledged(rollouts: int) -> frame.Row:
    """Returns the journal's own times, without those of HTTP and of admission."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "journal.sqlite"
        async with Journal(path) as journal:
            names = await _fill(journal, rollouts)
            before_mb, done = _size_mb(path), asyncio.Event()
            submissions = asyncio.create_task(_submit_until(journal, done))
            began_at = time.monotonic()
            await journal.forget(names)
            acknowledged_s = time.monotonic() - began_at
            await _shrunk(journal)
            done.set()
            took_s = sorted(await submissions)
            return {
                "rollouts": rollouts,
                "acknowledged_s": round(acknowledged_s, 2),
                "submission_median_s": round(took_s[len(took_s) // 2], 3),
                "submission_worst_s": round(took_s[-1], 3),
                "file_before_mb": before_mb,
                "file_after_mb": _size_mb(path),
            }


async def _fill(journal: Journal, rollouts: int) -> list[str]:
    names = [f"g{number}" for number in range(rollouts // GROUP_SIZE)]
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        await journal.accept([accepted(name, GROUP_SIZE) for name in some])
        ends = [ended(name, i, RESULT_BYTES) for name in some for i in range(GROUP_SIZE)]
        await asyncio.gather(*map(journal.end, ends))
    return names


async def _submit_until(journal: Journal, done: asyncio.Event) -> list[float]:
    """Submits a group every 20 ms until `done`; returns the seconds that each took."""
    took_s: list[float] = []
    while not done.is_set():
        began_at = time.monotonic()
        await journal.accept([accepted(f"new{len(took_s)}", GROUP_SIZE)])
        took_s.append(time.monotonic() - began_at)
        await asyncio.sleep(PAUSE_S)
    return took_s


async def _shrunk(journal: Journal) -> None:
    def is_left(db: sqlite3.Connection) -> bool:
        return tables.has_garbage(db) or tables.free_pages(db) >= SPARE_PAGES

    while await journal.read(is_left):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


def _size_mb(path: Path) -> float:
    parts = (path.with_name(path.name + end) for end in ("", "-wal"))
    return round(sum(one.stat().st_size for one in parts if one.exists()) / 1e6, 1)


if __name__ == "__main__":
    frame.run("trust", {"outage": outage, "journal": journal})
