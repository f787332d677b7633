"""Offline instances, which `tests.prepare` has built, and patches against them."""

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path

from prorl_service.rewards.swe.grade import SweReport
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from recipes.swebench import grading
from recipes.swebench.offline import build_all, default_directory
from recipes.swebench.patches import Checkout
from recipes.swebench.rows import SweInstance


@functools.cache
def instances() -> dict[str, SweInstance]:
    return {row.instance_id: row for row in build_all(default_directory())}


def instance(instance_id: str) -> SweInstance:
    return instances()[instance_id]


@functools.cache
def checkout(instance_id: str) -> Checkout:
    return Checkout(instance(instance_id), Path(tempfile.mkdtemp()))


def patch_of(instance_id: str, files: Mapping[str, str | None], *, fixed: bool = False) -> str:
    return checkout(instance_id).patch(files, fixed=fixed)


async def graded(row: SweInstance, patch: str | bytes) -> SweReport:
    async with BubblewrapProvider() as sandboxes:
        return await grading.graded(row, patch, sandboxes)
