"""Admits instances by what they are graded: by what was found before, or by grading them now.

How an instance is graded is passed in. What was found is kept in a file by the instance's content,
so that an interrupted admission goes on where it was.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from prorl_service.errors import ProRLError
from prorl_service.sandbox.base import SandboxProvider
from recipes.swebench.data.diffs import file_diff
from recipes.swebench.grading import graded
from recipes.swebench.rows import SweInstance

Admit = Callable[[SweInstance], Awaitable[str | None]]
"""None, or why not. Raises `ProRLError`."""

NOTHING = file_diff("notes.txt", None, "I looked at it.\n")


def by_grading(sandboxes: SandboxProvider) -> Admit:
    """The reference patch resolves, and a patch that fixes nothing does not."""

    async def admit(row: SweInstance) -> str | None:
        reference = await graded(row, row.patch, sandboxes)
        if not reference.resolved:
            return f"the reference patch does not resolve: {reference.summary}"
        nothing = await graded(row, NOTHING, sandboxes)
        return "a patch that fixes nothing resolves" if nothing.resolved else None

    return admit


async def refused(
    instances: Iterable[SweInstance],
    admit: Admit,
    kept: Path,
    *,
    parallel: int,
    on_done: Callable[[SweInstance, str | None], None],
) -> tuple[dict[str, str], bool]:
    """Why not, by id, and whether that is for good: what may pass is refused too, and not kept."""
    found = _read(kept)
    slots = asyncio.Semaphore(parallel)
    reasons: dict[str, str] = {}
    may_pass: set[str] = set()

    async def decide(row: SweInstance) -> None:
        key = hashlib.sha256(row.model_dump_json().encode()).hexdigest()
        if key in found:
            reason = found[key]
        else:
            async with slots:
                reason, is_final = await _ask(admit, row)
            if is_final:
                _keep(kept, key=key, instance_id=row.instance_id, reason=reason)
            else:
                may_pass.add(row.instance_id)
        if reason is not None:
            reasons[row.instance_id] = reason
        on_done(row, reason)

    async with asyncio.TaskGroup() as group:
        for row in instances:
            group.create_task(decide(row))
    return reasons, not may_pass


async def _ask(admit: Admit, row: SweInstance) -> tuple[str | None, bool]:
    """Also whether that is final."""
    try:
        return await admit(row), True
    except ProRLError as error:
        return f"it cannot be graded: {error}", not error.retryable


def _keep(kept: Path, **entry: str | None) -> None:
    with kept.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def _read(kept: Path) -> dict[str, str | None]:
    """A last line that a crash has cut is as if it were not there."""
    found: dict[str, str | None] = {}
    for line in kept.read_text().splitlines(keepends=True) if kept.exists() else []:
        if line.endswith("\n"):
            entry = json.loads(line)
            found[entry["key"]] = entry["reason"]
    return found
