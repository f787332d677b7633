"""Our own sandboxes, from the least to the most isolated, and Apptainer's own command line."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prorl_service.sandbox.base import Sandbox, SandboxLimits, SandboxProvider, ToolResult
from prorl_service.sandbox.host.zygotes import container_user
from prorl_service.sandbox.kinds.apptainer import OPTIONS, ApptainerProvider
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from prorl_service.sandbox.kinds.process import ProcessSandboxProvider
from tests.sandbox.images.debian import debian_image

LIMITS = SandboxLimits(output_bytes=2 << 20)
"""Limits that keep all output, as the others do."""
TIMEOUT_S = 60.0
CONTAINER_USER = container_user()
SAME_OPTIONS, CONTAINED = list(OPTIONS), ["-C"]
SIF, BUBBLEWRAP = "ours, apptainer SIF", "ours, bubblewrap"


@dataclass(frozen=True, slots=True)
class Rung:
    name: str
    provider: SandboxProvider
    image: str | None = None

    def new(self) -> Sandbox:
        return self.provider.create(image=self.image, limits=LIMITS)


@asynccontextmanager
async def all_rungs() -> AsyncIterator[list[Rung]]:
    async with (
        apptainer() as provider,
        ProcessSandboxProvider() as process,
        BubblewrapProvider() as bubblewrap,
    ):
        yield [
            Rung("ours, process", process),
            Rung(BUBBLEWRAP, bubblewrap),
            Rung(SIF, provider, str(sif())),
        ]


def apptainer() -> ApptainerProvider:
    """Returns a provider that has started nothing yet."""
    return ApptainerProvider(_local)


@asynccontextmanager
async def _local(image: str) -> AsyncIterator[Path]:
    yield Path(image)


@asynccontextmanager
async def running(rung: Rung) -> AsyncIterator[Sandbox]:
    sandbox = rung.new()
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.stop()


async def enter_all(stack: AsyncExitStack) -> dict[str, Sandbox]:
    """Starts one sandbox of each rung."""
    rungs = await stack.enter_async_context(all_rungs())
    return {rung.name: await stack.enter_async_context(running(rung)) for rung in rungs}


def tool(sandbox: Sandbox, name: str, argument: str) -> Callable[[str], Awaitable[str]]:
    """Returns a function that runs text with a tool, which takes it in `argument`."""

    async def run(text: str) -> str:
        result: ToolResult = await sandbox.call_tool(name, {argument: text}, timeout_s=TIMEOUT_S)
        if result.is_error:
            raise RuntimeError(f"{name} failed: {result.output[-500:]}")
        return result.output

    return run


def sif() -> Path:
    return debian_image()


def bare_exec(image: Path | str, options: list[str]) -> list[str]:
    """Returns a command line of Apptainer that lacks only the program to run."""
    program = shutil.which("apptainer")
    assert program, "apptainer is not installed"
    return [program, "--silent", "exec", *options, str(image)]
