"""A verifier run in the agent's own sandbox, beside what the agent left: without any guard."""

import asyncio
import shlex
from collections.abc import Mapping

from prorl_service.agents.harbor.data import HarborData
from prorl_service.agents.harbor.directory.reading import TaskDirectory
from prorl_service.agents.harbor.rewards import NoReward, RewardFiles, scalar
from prorl_service.sandbox.archives import load_archive
from prorl_service.sandbox.base import Sandbox, SandboxLimits, SandboxProvider
from tests.agents.harbor.guard.shapes import Shape, image

LIMITS = SandboxLimits(memory_mb=1024, processes=256, disk_mb=256)
TIMEOUT_S = 60.0


async def wins(
    provider: SandboxProvider, shape: Shape, directory: TaskDirectory, script: str
) -> bool:
    """Returns whether a script gets a reward of 1."""
    sandbox = provider.create(image=str(image()), limits=LIMITS)
    await sandbox.start()
    try:
        workdir = shlex.quote(shape.workdir)
        await _run(sandbox, f"mkdir -p {workdir} /logs/verifier; cd {workdir}")
        await _run(sandbox, f"( {script}\n) < /dev/null")
        for archive in HarborData.model_validate(directory.task().data).steps[0].verifier.tests:
            await sandbox.restore("/tests", load_archive(archive))
        verifier = f"chmod +x /tests/test.sh; ( cd {workdir}; /tests/test.sh )"
        await _run(sandbox, f"{verifier} > /dev/null 2>&1 < /dev/null")
        return await _reward(sandbox) >= 1
    finally:
        await sandbox.stop()


async def all_wins(
    provider: SandboxProvider,
    shape: Shape,
    directory: TaskDirectory,
    scripts: Mapping[str, str],
    parallel: int,
) -> list[str]:
    """Returns the names of the scripts that win."""
    slots = asyncio.Semaphore(parallel)

    async def tried(script: str) -> bool:
        async with slots:
            return await wins(provider, shape, directory, script)

    found = await asyncio.gather(*(tried(script) for script in scripts.values()))
    return [name for name, won in zip(scripts, found, strict=True) if won]


async def _run(sandbox: Sandbox, command: str) -> None:
    await sandbox.call_tool("bash", {"command": command}, timeout_s=TIMEOUT_S)


async def _reward(sandbox: Sandbox) -> float:
    files = [await _content(sandbox, f"/logs/verifier/reward.{kind}") for kind in ("json", "txt")]
    try:
        return scalar(RewardFiles(*files).read()[0], "reward")
    except NoReward:
        return 0.0


async def _content(sandbox: Sandbox, path: str) -> bytes | None:
    try:
        return await sandbox.download(path)
    except OSError:
        return None
