"""Grades a patch of an instance without a service: admission of instances, tests, measurements."""

from prorl_service.agents.swe import LIMITS
from prorl_service.agents.swe_data import SweData
from prorl_service.agents.swe_eval import grade_patch
from prorl_service.rewards.swe import SweReport
from prorl_service.sandbox.base import SandboxProvider
from recipes.swebench.rows import SweInstance


async def graded(
    row: SweInstance, patch: str | bytes, sandboxes: SandboxProvider, image: str | None = None
) -> SweReport:
    """In a sandbox of its own. `image` is for providers that need one where the row has none.

    Raises what `grade_patch` raises.
    """
    sandbox = sandboxes.create(image=row.image or image, limits=LIMITS)
    await sandbox.start()
    try:
        data = SweData.model_validate(row.task().data)
        return await grade_patch(sandbox, data, patch.encode() if isinstance(patch, str) else patch)
    finally:
        await sandbox.stop()
