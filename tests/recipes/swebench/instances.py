"""Offline instances, which `tests.prepare` has built, patches against them, and rows of them."""

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path

from prorl_service.rewards.swe.grade import SweReport
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from recipes.swebench import grading
from recipes.swebench.offline import build_all, default_directory
from recipes.swebench.patches import Checkout
from recipes.swebench.rows import SweInstance, write_rows


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


TINY = ("mako-1.3.5", "mistune-3.1.0", "python-dotenv-1.1.0")
QUICK = ("data.only=[mistune-3.1.0,python-dotenv-1.1.0]", "sandbox.run_workers=4")
"""Overrides for a quick run, on the instances with the fewest tests."""


def rows_of_tiny(directory: Path) -> Path:
    path = directory / "rows.jsonl"
    write_rows(path, [instance(name) for name in TINY])
    return path
