"""Start, stop and death, in any order and at any moment. Processes are watched by id and start."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from prorl_service.errors import SandboxError
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.host import spec
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox import engines
from tests.sandbox.sandboxes import (
    DOCKER,
    KINDS,
    Kind,
    bash,
    new_provider,
    new_sandbox,
    output,
    running,
    started,
)

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
DAEMONS = (
    "(setsid sleep 1000 </dev/null >/dev/null 2>&1 &); nohup sleep 1000 & sleep 1000 & echo up"
)


def processes_of(sandbox: RemoteSandbox) -> list[psutil.Process]:
    assert sandbox.server_pid is not None
    server = psutil.Process(sandbox.server_pid)
    return [server, *server.children(recursive=True)]


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive


def held() -> tuple[list[psutil.Process], int, set[str]]:
    """Returns what this process holds: children, count of descriptors, directories of sandboxes."""
    directories = {name for name in os.listdir(tempfile.gettempdir()) if "prorl-sandbox" in name}
    return (
        psutil.Process().children(recursive=True),
        len(os.listdir("/proc/self/fd")),
        directories,
    )


@pytest.fixture(params=[*KINDS, DOCKER])
async def provider(request: pytest.FixtureRequest) -> AsyncIterator[SandboxProvider]:
    """Yields a provider that has made a sandbox, so that what all sandboxes share exists."""
    async with new_provider(request.param) as provider:
        async with started(provider) as sandbox:
            await bash(sandbox, "true")
        yield provider


async def test_stop_ends_every_process_even_daemons(provider: SandboxProvider) -> None:
    before = held()
    async with started(provider) as sandbox:
        assert "up" in await output(sandbox, DAEMONS)
        processes = processes_of(sandbox)
        assert len(processes) == 5
    assert not any(process.is_running() for process in processes)
    assert held() == before


async def test_fifty_cycles_leave_nothing(provider: SandboxProvider) -> None:
    before = held()
    for _ in range(10):
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(one_cycle(provider))
    assert held() == before


async def one_cycle(provider: SandboxProvider) -> None:
    async with started(provider) as sandbox:
        await bash(sandbox, "sleep 1000 & echo x >file")


@pytest.mark.parametrize("delay_ms", [0, 1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("way", ["stop", "cancel"])
@pytest.mark.sampled(12)
async def test_ending_a_start_leaves_nothing(
    provider: SandboxProvider, way: str, delay_ms: int
) -> None:
    before = held()
    sandbox = new_sandbox(provider)
    start = asyncio.create_task(sandbox.start())
    await asyncio.sleep(delay_ms / 1000)
    if way == "stop" or not start.cancel():
        await sandbox.stop()
    [error] = await asyncio.gather(start, return_exceptions=True)
    if way == "stop":
        assert error is None or isinstance(error, SandboxError)
        with pytest.raises(SandboxError):
            await bash(sandbox, "true")
    else:
        assert error is None or start.cancelled()
    assert held() == before


@pytest.mark.parametrize("delay_ms", [0, 1, 2, 4, 8, 16])
@pytest.mark.sampled(5)
async def test_starts_cancelled_repeatedly_do_not_harm_others(
    provider: SandboxProvider, delay_ms: int
) -> None:
    before = held()
    sandboxes = [new_sandbox(provider) for _ in range(12)]
    starts = [asyncio.create_task(sandbox.start()) for sandbox in sandboxes]
    await asyncio.sleep(delay_ms / 1000)
    for _ in range(3):
        for start in starts[::2]:
            start.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*starts[1::2])
    await asyncio.gather(*starts, return_exceptions=True)
    for sandbox in sandboxes[::2]:
        await sandbox.stop()
    for sandbox in sandboxes[1::2]:
        assert await output(sandbox, "echo up") == "up"
        await sandbox.stop()
    assert held() == before


async def test_stop_is_idempotent_and_a_sandbox_is_single_use(provider: SandboxProvider) -> None:
    sandbox = new_sandbox(provider)
    await sandbox.start()
    with pytest.raises(SandboxError, match="only once"):
        await sandbox.start()
    assert await output(sandbox, "echo still up") == "still up"
    await asyncio.gather(sandbox.stop(), sandbox.stop())
    await sandbox.stop()
    with pytest.raises(SandboxError, match="stopped"):
        await bash(sandbox, "true")
    with pytest.raises(SandboxError, match="only once"):
        await sandbox.start()


async def test_stop_continues_when_its_caller_is_cancelled(provider: SandboxProvider) -> None:
    before = held()
    sandbox = new_sandbox(provider)
    await sandbox.start()
    stop = asyncio.create_task(sandbox.stop())
    await asyncio.sleep(0)
    stop.cancel()
    await asyncio.gather(stop, return_exceptions=True)
    await sandbox.stop()
    assert held() == before


async def test_a_sandbox_that_never_started_can_only_be_stopped(provider: SandboxProvider) -> None:
    sandbox = new_sandbox(provider)
    with pytest.raises(SandboxError, match="not started"):
        await sandbox.upload("file", b"")
    await sandbox.stop()
    with pytest.raises(SandboxError, match="only once"):
        await sandbox.start()


async def test_stop_fails_the_calls_in_flight(provider: SandboxProvider) -> None:
    sandbox = new_sandbox(provider)
    await sandbox.start()
    calls = [asyncio.create_task(bash(sandbox, "sleep 1000", timeout_s=1000)) for _ in range(3)]
    await sandbox.upload("calls are on their way", b"")
    await sandbox.stop()
    for call in calls:
        with pytest.raises(SandboxError, match="stopped"):
            await call


async def test_a_killed_server_fails_all_calls_immediately(provider: SandboxProvider) -> None:
    async with started(provider) as sandbox:
        await bash(sandbox, "sleep 30 &")
        processes = processes_of(sandbox)
        calls = [asyncio.create_task(bash(sandbox, "sleep 30", timeout_s=1000)) for _ in range(3)]
        await sandbox.upload("calls are on their way", b"")
        processes[0].kill()
        for call in calls:
            with pytest.raises(SandboxError, match="died"):
                await call
        with pytest.raises(SandboxError, match="died"):
            await sandbox.download("file")
        assert_gone(processes)


async def test_a_killed_bwrap_takes_its_sandbox_along() -> None:
    async with running("bubblewrap") as sandbox:
        processes = processes_of(sandbox)
        processes[0].parent().kill()
        with pytest.raises(SandboxError):
            await bash(sandbox, "sleep 1000", timeout_s=1000)
    assert_gone(processes)


@pytest.mark.parametrize("delay_ms", [0, 1, 10])
async def test_a_killed_template_is_replaced_and_leaves_nothing(kind: Kind, delay_ms: int) -> None:
    async with new_provider(kind) as provider, started(provider):
        pass  # what the loop opens once is open
    before = held()
    async with new_provider(kind) as provider, started(provider) as sandbox:
        zygote = psutil.Process(sandbox.server_pid).parent()
        assert zygote is not None
        zygote.kill()
        await asyncio.sleep(delay_ms / 1000)
        async with started(provider) as next_one:
            assert await output(next_one, "echo here") == "here"
    assert held() == before


async def test_the_error_of_a_failed_start_contains_its_output(
    provider: SandboxProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec, "OPEN_FILES", 1)
    before = held()
    sandbox = new_sandbox(provider)
    with pytest.raises(SandboxError, match=r"died: OSError: .* Too many open files"):
        await sandbox.start()
    assert held() == before


SERVICE = """
import asyncio, os, sys, time, psutil
from tests.sandbox.sandboxes import bash, new_provider, new_sandbox
from tests.sandbox.test_sandbox_lifecycle import processes_of

async def main():
    provider = new_provider(sys.argv[1])
    sandboxes = [new_sandbox(provider) for _ in range(3)]
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    for sandbox in sandboxes:
        await bash(sandbox, sys.argv[2])
    asyncio.create_task(bash(sandboxes[0], "sleep 1000", 1000))
    await bash(sandboxes[1], "true")
    inside = [process for sandbox in sandboxes for process in processes_of(sandbox)]
    print(*{process.pid for process in [*inside, *psutil.Process().children(recursive=True)]})
    if (forked := os.fork()) == 0:
        time.sleep(1000)
    print(forked, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_everything_dies_with_the_service(kind: Kind) -> None:
    engines.use(kind)
    service = subprocess.Popen(
        [sys.executable, "-c", SERVICE, kind, DAEMONS],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ":".join([str(ROOT), *sys.path])},
    )
    with service:
        assert service.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in service.stdout.readline().split()]
        assert len(processes) >= 3 * 5
        forked = psutil.Process(int(service.stdout.readline()))
        service.kill()
        assert_gone(processes)
        forked.kill()
