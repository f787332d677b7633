"""Dockerfiles by Apptainer 1.5 and BuildKit: its `buildkit:` bootstrap calls `buildctl`.

Needs a running buildkitd (`BUILDKIT_HOST`). BuildKit fetches images itself, so that it cannot use
those of the cache, and its commands have the network that the daemon gives them.
"""

import asyncio
import re
import shutil
from pathlib import Path

from prorl_service.errors import ProRLError
from prorl_service.sandbox.images.dockerfiles.rungs import Made, Obstacle, Work
from prorl_service.sandbox.images.dockerfiles.steps import failed

SINCE = (1, 5)
"""First version of Apptainer with the bootstrap."""

TRIAL_TIMEOUT_S = 20.0
_LINE = re.compile(r"^\S*Dockerfile:(\d+)$|^(?:Dockerfile|ERROR).*?:(\d+)\b", re.MULTILINE)


class BuildKit:
    name = "Apptainer with BuildKit"

    async def trial(self, workspace: Path) -> str | None:
        version = await _output("apptainer", "--version")
        found = re.search(r"(\d+)\.(\d+)", version or "")
        if found is None:
            return "Apptainer is not installed"
        if (int(found[1]), int(found[2])) < SINCE:
            return f"needs Apptainer 1.5, this is {found[0]}"
        if shutil.which("buildctl") is None:
            return "buildctl is not installed"
        # It lists the daemon's workers, and fails without a daemon.
        workers = await _output("buildctl", "debug", "workers")
        return None if workers is not None else "no buildkitd answers: set BUILDKIT_HOST"

    def obstacle(self, work: Work) -> Obstacle | None:
        if not work.network:
            return Obstacle("BuildKit gives commands the network of its daemon")
        if work.bases:
            return Obstacle(f"BuildKit does not have {next(iter(work.bases))} of the cache")
        return None

    async def make(self, work: Work) -> Made:
        definition = work.workspace / "definition"
        # Releases that split the build arguments without a check need one of them.
        header = f"Bootstrap: buildkit\nFrom: {work.context.directory}\nBuildArgs: PRORL=1\n"
        await asyncio.to_thread(definition.write_text, header)
        return Made(str(definition))

    def explain(self, work: Work, messages: str, error: ProRLError) -> ProRLError:
        """BuildKit ends with `Dockerfile:LINE` and an excerpt, then with `ERROR: ...`."""
        for match in _LINE.finditer(messages):
            line = int(match[1] or match[2])
            for instruction in work.context.dockerfile.instructions:
                if instruction.line == line:
                    return failed(work.context.dockerfile, instruction, messages)
        return error


async def _output(*command: str) -> str | None:
    """Returns what a command says; None if it fails."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(TRIAL_TIMEOUT_S):
            said, _ = await process.communicate()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return said.decode(errors="replace") if process.returncode == 0 else None
