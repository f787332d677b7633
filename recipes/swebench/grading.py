"""Grades a patch of an instance without a service: admission of instances, tests, measurements."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prorl_service.agents.swe import LIMITS
from prorl_service.agents.swe_data import SweData
from prorl_service.agents.swe_eval import grade_patch
from prorl_service.rewards.swe import SweReport
from prorl_service.sandbox.base import Sandbox, SandboxProvider
from recipes.swebench.rows import SweInstance


async def graded(
    row: SweInstance, patch: str | bytes, sandboxes: SandboxProvider, image: str | None = None
) -> SweReport:
    """In a sandbox of its own. `image` is for providers that need one where the row has none.

    Raises what `grade_patch` raises.
    """
    data = SweData.model_validate(row.task().data)
    async with sandbox_of(row, sandboxes, image) as sandbox:
        return await grade_patch(sandbox, data, patch.encode() if isinstance(patch, str) else patch)


@asynccontextmanager
async def sandbox_of(
    row: SweInstance, sandboxes: SandboxProvider, image: str | None = None
) -> AsyncIterator[Sandbox]:
    """A fresh one, started. Raises `TaskError`, `SandboxError`."""
    sandbox = sandboxes.create(image=row.image or image, limits=LIMITS)
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.stop()
