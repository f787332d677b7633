"""Keeps decisions about instances, so that an interrupted admission continues where it was.

The function that decides is passed in (`recipes.swebench.grading.admit`). Decisions are kept in a
file, keyed by the instance's content.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ValidationError

from prorl_service.errors import ProRLError
from recipes.swebench.grading import Admission
from recipes.swebench.rows import SweInstance

Admit = Callable[[SweInstance], Awaitable[Admission]]
"""Decision about an instance; raises `ProRLError` for a failure that says nothing about it."""


class _Found(BaseModel):
    """A line of the file."""

    key: str
    instance_id: str
    admission: Admission


@dataclass(slots=True)
class Decisions:
    """`may_pass`: ids of instances refused for a temporary reason, which is not kept."""

    admissions: dict[str, Admission] = field(default_factory=dict)
    may_pass: set[str] = field(default_factory=set)


async def decide(
    instances: Iterable[SweInstance],
    admit: Admit,
    kept: Path,
    *,
    parallel: int,
    on_done: Callable[[SweInstance, Admission], None],
) -> Decisions:
    found = _read(kept)
    slots = asyncio.Semaphore(parallel)
    decisions = Decisions()

    async def decide_one(row: SweInstance) -> None:
        key = hashlib.sha256(row.model_dump_json().encode()).hexdigest()
        admission = found.get(key)
        if admission is None:
            async with slots:
                admission, is_final = await _ask(admit, row)
            if is_final:
                _keep(kept, _Found(key=key, instance_id=row.instance_id, admission=admission))
            else:
                decisions.may_pass.add(row.instance_id)
        decisions.admissions[row.instance_id] = admission
        on_done(row, admission)

    async with asyncio.TaskGroup() as group:
        for row in instances:
            group.create_task(decide_one(row))
    return decisions


async def _ask(admit: Admit, row: SweInstance) -> tuple[Admission, bool]:
    """Returns the decision, and whether it is final."""
    try:
        return await admit(row), True
    except ProRLError as error:
        return Admission(None, reason=f"it cannot be graded: {error}"), not error.retryable


def _keep(kept: Path, found: _Found) -> None:
    with kept.open("a") as file:
        file.write(f"{found.model_dump_json()}\n")


def _read(kept: Path) -> dict[str, Admission]:
    """Reads the kept decisions, except for a line that a crash cut off."""
    found = {}
    for line in kept.read_text().split("\n") if kept.exists() else []:
        try:
            entry = _Found.model_validate_json(line)
        except ValidationError:
            continue
        found[entry.key] = entry.admission
    return found
