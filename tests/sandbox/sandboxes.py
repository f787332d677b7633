import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from prorl_service.sandbox.base import SandboxLimits, SandboxProvider, ToolResult
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.images import ImageOptions
from prorl_service.sandbox.kinds import KINDS as TABLE
from prorl_service.sandbox.kinds import make
from prorl_service.sandbox.kinds.apptainer import ApptainerProvider
from tests.sandbox import engines
from tests.sandbox.images.debian import debian_image

Kind = str
ISOLATED = tuple(name for name, kind in TABLE.items() if kind.isolates and name != "docker")
KINDS = (*ISOLATED, "process")
DOCKER = pytest.param("docker", marks=pytest.mark.on_demand)
"""Parameter of tests of all kinds: its tests start a daemon, which other runs do not need."""

LIMITS = SandboxLimits(memory_mb=512, processes=64, disk_mb=16, file_mb=8, output_bytes=4096)


def new_provider(kind: Kind) -> SandboxProvider:
    engines.use(kind)
    # Images of these tests are directories: they need no cache.
    return (
        ApptainerProvider(local_image) if kind == "apptainer" else make(kind, ImageOptions(), None)
    )


def image_of(kind: Kind) -> str | None:
    """Returns the image with the tests' tools; None for a kind without images."""
    if kind in engines.ENGINES:
        return engines.engine_image(kind)
    return str(debian_image()) if TABLE[kind].has_images else None


@asynccontextmanager
async def local_image(path: str) -> AsyncIterator[Path]:
    yield Path(path)


def new_sandbox(
    provider: SandboxProvider, limits: SandboxLimits = LIMITS, image: Path | str | None = None
) -> RemoteSandbox:
    """Returns a sandbox of `image`, or of a default with the tests' tools if the kind needs one."""
    if image is None:
        image = image_of(provider.kind)
    sandbox = provider.create(image=str(image) if image else None, limits=limits)
    assert isinstance(sandbox, RemoteSandbox)
    return sandbox


@asynccontextmanager
async def started(
    provider: SandboxProvider, limits: SandboxLimits = LIMITS, image: Path | str | None = None
) -> AsyncIterator[RemoteSandbox]:
    sandbox = new_sandbox(provider, limits, image)
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.stop()


@asynccontextmanager
async def running(kind: Kind, limits: SandboxLimits = LIMITS) -> AsyncIterator[RemoteSandbox]:
    async with new_provider(kind) as provider, started(provider, limits) as sandbox:
        yield sandbox


async def bash(sandbox: RemoteSandbox, command: str, timeout_s: float = 20) -> ToolResult:
    return await sandbox.call_tool("bash", {"command": command}, timeout_s=timeout_s)


async def output(sandbox: RemoteSandbox, command: str, timeout_s: float = 20) -> str:
    """Returns the output of a command that must succeed, without the line end."""
    result = await bash(sandbox, command, timeout_s)
    assert result.data["exit_code"] == 0, result
    return result.output.removesuffix("\n")


async def python(sandbox: RemoteSandbox, program: str) -> str:
    """Returns what a program prints that must succeed."""
    await sandbox.upload("program.py", program.encode())
    return await output(sandbox, "python3 program.py")


def open_to_others(path: Path) -> None:
    """Opens `path` and its parents to containers of other users; pytest's are private."""
    for directory in (path, *path.parents):
        if directory.owner() == path.owner():
            directory.chmod(directory.stat().st_mode | 0o755)


def processes_with(argument: str) -> list[psutil.Process]:
    """Returns the host's live processes that have `argument`, except this one."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if process.pid != os.getpid()
        and process.info["status"] != psutil.STATUS_ZOMBIE
        and argument in " ".join(process.info["cmdline"] or ())
    ]
