"""Cost of acknowledging 50,000 rollouts in one call, for clients that submit meanwhile.

`python -m bench.trust.journal [ROLLOUTS]` fills a journal with ended rollouts of 6 kB, in groups of
8, acknowledges them all, and submits a group every 20 ms until the file has shrunk. It prints the
journal's own times, without those of HTTP and of admission.
"""

import asyncio
import json
import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.journal import tables as tables
from prorl_service.rollouts.journal.tables import AcceptedRow, EndedRow
from prorl_service.rollouts.journal.threads import SPARE_PAGES
from prorl_service.schemas import RolloutState

ROLLOUTS, GROUP_SIZE = 50_000, 8
ANSWER_BYTES, SUMMARY_BYTES, REQUEST_BYTES = 6000, 700, 1500
AT_ONCE = 50
"""Groups accepted together while the journal is filled."""
PAUSE_S = 0.02


async def fill(journal: Journal, rollouts: int) -> list[str]:
    names = [f"g{number}" for number in range(rollouts // GROUP_SIZE)]
    for start in range(0, len(names), AT_ONCE):
        some = names[start : start + AT_ONCE]
        await journal.accept([_accepted(name) for name in some])
        ends = [_ended(name, index) for name in some for index in range(GROUP_SIZE)]
        await asyncio.gather(*map(journal.end, ends))
    return names


def _accepted(name: str) -> AcceptedRow:
    return AcceptedRow(name, GROUP_SIZE, os.urandom(REQUEST_BYTES), time.time())


def _ended(name: str, index: int) -> EndedRow:
    summary, answer = os.urandom(SUMMARY_BYTES), os.urandom(ANSWER_BYTES)
    return EndedRow(f"{name}.{index}", name, 1, RolloutState.DONE, summary, answer)


async def submit_until(journal: Journal, done: asyncio.Event) -> list[float]:
    """Submits groups until `done`; returns the seconds that each took."""
    took_s: list[float] = []
    while not done.is_set():
        began_at = time.monotonic()
        await journal.accept([_accepted(f"new{len(took_s)}")])
        took_s.append(time.monotonic() - began_at)
        await asyncio.sleep(PAUSE_S)
    return took_s


async def shrunk(journal: Journal) -> None:
    def is_left(db: sqlite3.Connection) -> bool:
        return tables.has_garbage(db) or tables.free_pages(db) >= SPARE_PAGES

    while await journal.read(is_left):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


def size_mb(path: Path) -> float:
    parts = (path.with_name(path.name + end) for end in ("", "-wal"))
    return round(sum(one.stat().st_size for one in parts if one.exists()) / 1e6, 1)


async def measure(rollouts: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal.sqlite"
        async with Journal(path) as journal:
            names = await fill(journal, rollouts)
            before_mb, done = size_mb(path), asyncio.Event()
            submissions = asyncio.create_task(submit_until(journal, done))
            began_at = time.monotonic()
            await journal.forget(names)
            acknowledged_s = time.monotonic() - began_at
            await shrunk(journal)
            shrunk_s = time.monotonic() - began_at
            done.set()
            took_s = sorted(await submissions)
            return {
                "rollouts": rollouts,
                "acknowledged_s": round(acknowledged_s, 2),
                "shrunk_s": round(shrunk_s, 2),
                "submissions": len(took_s),
                "submission_median_s": round(took_s[len(took_s) // 2], 3),
                "submission_worst_s": round(took_s[-1], 3),
                "file_before_mb": before_mb,
                "file_after_mb": size_mb(path),
                "load": round(os.getloadavg()[0], 1),
            }


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROLLOUTS
    print(json.dumps(asyncio.run(measure(count)), indent=2))
