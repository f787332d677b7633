"""Limits of what a sandbox can use up: processes, memory, disk, output and time."""

import asyncio

import psutil
import pytest

from prorl_service.sandbox.base import SandboxLimits, SandboxProvider
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.sandboxes import bash, output, python, started

pytestmark = pytest.mark.processes


async def test_a_fork_bomb_is_contained_and_survived(isolating: SandboxProvider) -> None:
    limits = SandboxLimits(processes=32)
    async with started(isolating, limits) as sandbox, started(isolating, limits) as other:
        await bash(sandbox, "bomb() { bomb | bomb & }; bomb", timeout_s=1)
        assert await output(other, "ls -d /; echo unharmed") == "/\nunharmed"
        await bash(sandbox, "kill -KILL -1")
        assert "alive" in await output(sandbox, "ls -d /; echo alive")


FORKS = """
import os, time
started = 0
try:
    while started < 100:
        if os.fork() == 0:
            time.sleep(1000)
        started += 1
except OSError:
    print(started)
"""


async def test_processes_are_counted_per_sandbox(
    isolating: SandboxProvider,
) -> None:
    limits = SandboxLimits(processes=32)
    async with started(isolating, limits) as one, started(isolating, limits) as two:
        for sandbox in (one, two):
            assert await python(sandbox, FORKS) == str(32 - 3)  # server, bash, this one


async def test_a_process_that_takes_too_much_memory_gets_an_error(
    isolating: SandboxProvider,
) -> None:
    async with started(isolating, SandboxLimits(memory_mb=128)) as sandbox:
        result = await bash(sandbox, "python3 -c 'bytearray(200 << 20)'")
        assert result.is_error
        assert "MemoryError" in result.output
        assert await output(sandbox, "echo alive") == "alive"


HOARD = """
import mmap, os, sys, time
held = mmap.mmap(-1, 60 << 20, {flags})
for start in range(0, len(held), 4096):
    held[start] = 1
time.sleep(1000)
"""


async def test_all_processes_together_cannot_exceed_the_memory_limit(
    isolating: SandboxProvider,
) -> None:
    limits = SandboxLimits(memory_mb=128)
    async with started(isolating, limits) as sandbox:
        for flags in ("mmap.MAP_PRIVATE", "mmap.MAP_SHARED"):
            await sandbox.upload("hoard.py", HOARD.format(flags=flags).encode())
            await output(sandbox, "for i in 1 2 3 4 5 6; do python3 hoard.py & done 2>/dev/null")
            await output(sandbox, "while [ $(jobs -r | wc -l) -gt 2 ]; do sleep 0.1; done")
            programs = 16 << 20
            assert await held_bytes(sandbox) <= (128 << 20) + programs
            await output(sandbox, "kill -KILL $(jobs -p); wait; echo gone")


async def held_bytes(sandbox: RemoteSandbox) -> int:
    assert sandbox.server_pid is not None
    await asyncio.sleep(0.5)
    return sum(
        process.memory_full_info().pss
        for process in psutil.Process(sandbox.server_pid).children(recursive=True)
    )


async def test_the_disk_cannot_be_filled(isolating: SandboxProvider) -> None:
    limits = SandboxLimits(disk_mb=16, file_mb=4)
    async with started(isolating, limits) as sandbox, started(isolating, limits) as other:
        for directory in ("/workspace", "/tmp", "/dev/shm"):
            fill = (
                f"for i in {{1..40}}; do head -c 4000000 /dev/zero >{directory}/$i || break; done"
            )
            result = await bash(sandbox, fill)
            assert "No space left" in result.output, directory
        written = await output(sandbox, "cat /workspace/* /tmp/* | wc -c")
        assert 12 << 20 < int(written) <= 16 << 20
        await output(other, "head -c 4000000 /dev/zero >/workspace/unharmed")
        await output(sandbox, "rm /workspace/*; echo fits >file")


async def test_empty_files_count_against_the_disk_limit(isolating: SandboxProvider) -> None:
    async with started(isolating, SandboxLimits(disk_mb=16)) as sandbox:
        result = await bash(sandbox, "mkdir d; cd d; for i in {1..10000}; do >$i; done")
        assert "No space left" in result.output


async def test_a_busy_sandbox_does_not_starve_another(isolating: SandboxProvider) -> None:
    async with started(isolating) as sandbox, started(isolating) as other:
        await bash(sandbox, "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done")
        assert await output(other, "seq 1000 | tail -n 1", timeout_s=10) == "1000"
