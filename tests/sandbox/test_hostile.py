"""Attacks on other sandboxes, the limits or the server that once worked and must now fail."""

import asyncio
import os
import resource
import subprocess
from pathlib import Path

import psutil
import pytest

from prorl_service.errors import SandboxError
from prorl_service.sandbox.base import SandboxLimits, SandboxProvider
from prorl_service.sandbox.guest.execd.namespaces import MAX_TERMINALS
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.host.zygotes import container_user
from tests.sandbox.sandboxes import bash, new_provider, new_sandbox, output, running, started
from tests.sandbox.test_apptainer import belong_to_container_user, containers, make_tiny_image

pytestmark = pytest.mark.processes

SHARED = """
import mmap, sys, time
held = mmap.mmap(-1, 60 << 20)
for start in range(0, len(held), 4096):
    held[start] = 1
time.sleep(1)
print("unharmed")
"""


async def test_memory_is_watched_even_if_a_lone_shell_starts_late(
    isolating: SandboxProvider,
) -> None:
    async with started(isolating, SandboxLimits(memory_mb=128)) as sandbox:
        await sandbox.upload("shared.py", SHARED.encode())
        late = "read -t 0.6 </dev/tty; for i in 1 2 3 4; do python3 shared.py & done; wait"
        assert (await bash(sandbox, late)).output.count("unharmed") < 3


PAGE_TABLES = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
size, read_only, anonymous_without_reserve, no_huge_pages = 64 << 30, 1, 0x4022, 15
for _ in range(64):
    start = libc.mmap(None, size, read_only, anonymous_without_reserve, -1, 0)
    libc.madvise(start, size, no_huge_pages)
    for address in range(start, start + size, 2 << 20):
        ctypes.c_char.from_address(address).value
print("unharmed")
"""


async def test_page_tables_count_as_memory(isolating: SandboxProvider) -> None:
    async with started(isolating, SandboxLimits(memory_mb=64)) as sandbox:
        await sandbox.upload("tables.py", PAGE_TABLES.encode())
        assert (await bash(sandbox, "python3 tables.py")).data["exit_code"] == 128 + 9


OF_NO_PROCESS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == "x86_64"

def made(number, *arguments):
    for count in range(1000):
        if libc.syscall(number, *arguments) < 0:
            return count
    return "endless"

print(made(319 if x86 else 279, b"hidden", 0))  # memfd_create
print(made(447, 0))  # memfd_secret
print(made(29 if x86 else 194, 0, 50 << 20, 0o600))  # shmget: one, of less than the limit of all
print(made(64 if x86 else 190, 0, 32000, 0o600))  # semget
print(made(68 if x86 else 186, 0, 0o600) in (0, 128))  # msgget
"""


async def test_memory_that_belongs_to_no_process_is_unavailable(isolated: RemoteSandbox) -> None:
    await isolated.upload("made.py", OF_NO_PROCESS.encode())
    assert await output(isolated, "python3 made.py") == "0\n0\n1\n0\nTrue"


async def test_limits_of_namespaces_cannot_be_raised(isolated: RemoteSandbox) -> None:
    for name in ("kernel/shmall", "kernel/msgmnb", "kernel/sem", "fs/mqueue/msg_max"):
        result = await bash(isolated, f"echo 9999 >/proc/sys/{name}")
        assert result.is_error, name


TERMINALS = """
import os, time
terminals = 0
try:
    while terminals < 4000:
        os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
        terminals += 1
except OSError:
    pass
print(terminals, flush=True)
"""


async def test_terminals_are_limited() -> None:
    """All sandboxes share the host's terminals. Bubblewrap has no option to limit them."""
    async with running("apptainer") as sandbox:
        await sandbox.upload("terminals.py", TERMINALS.encode())
        assert int(await output(sandbox, "python3 terminals.py")) < MAX_TERMINALS


async def test_impossible_paths_are_the_callers_error(sandbox: RemoteSandbox) -> None:
    for path in ("/tmp/\ud800", "/tmp/nul\0", "/tmp/" + "a/" * 1500 + "x"):
        arguments = {"command": "create", "path": path, "file_text": "text"}
        result = await sandbox.call_tool("str_replace_editor", arguments, timeout_s=5)
        assert result.is_error, path[:20]
        for verb in (sandbox.download, sandbox.snapshot):
            with pytest.raises(OSError, match=r"path|too long"):
                await verb(path)
        for write in (sandbox.upload, sandbox.restore):
            with pytest.raises(OSError, match=r"path|too long"):
                await write(path, b"")


async def test_a_missing_shell_is_named() -> None:
    async with running("apptainer") as sandbox:
        await bash(sandbox, "rm /bin/bash; exit")
        assert "bash" in (await bash(sandbox, "true")).output


# --- the operator's side ------------------------------------------------------------------------


async def bash_until_the_end(sandbox: RemoteSandbox) -> None:
    for _ in range(200):
        await bash(sandbox, "read -t 0.1 </dev/tty")


async def test_a_container_that_loses_its_files_is_replaced() -> None:
    async with new_provider("apptainer") as provider:
        async with started(provider) as sandbox:
            (container,) = containers()
            (server,) = (
                child for child in container.children(recursive=True) if "fuse" in child.name()
            )
            server.kill()
            with pytest.raises(SandboxError, match="died"):
                await bash_until_the_end(sandbox)
        async with started(provider) as sandbox:
            assert await output(sandbox, "echo here") == "here"


def _run_as(user: int | None, command: list[str]) -> None:
    groups: list[int] | None = None if user is None else []
    subprocess.run(command, check=True, user=user, group=user, extra_groups=groups)


async def test_a_start_that_a_live_container_refuses_is_not_retried_forever() -> None:
    async with new_provider("apptainer") as provider, started(provider) as sandbox:
        assert sandbox.server_pid is not None
        zygote = psutil.Process(sandbox.server_pid).parent()
        assert zygote is not None
        no_more = ["prlimit", f"--pid={zygote.pid}", "--nproc=1:1"]
        await asyncio.to_thread(_run_as, container_user(), no_more)
        with pytest.raises(SandboxError, match="temporarily unavailable"):
            async with asyncio.timeout(20), started(provider):
                pass
        assert await output(sandbox, "echo alive") == "alive"


async def test_a_service_without_descriptors_says_so_and_leaks_none(
    isolating: SandboxProvider,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with started(isolating):
        pass  # its container keeps running
    before = len(os.listdir("/proc/self/fd"))
    refused = 0
    for room in range(24):
        sandbox = new_sandbox(isolating)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + room, hard))
        try:
            await sandbox.start()
        except SandboxError:
            refused += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await sandbox.stop()
    assert 0 < refused < 24
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_container_that_ends_during_starts_leaks_no_descriptors() -> None:
    held: list[int] = []
    for _ in range(3):
        async with new_provider("apptainer") as provider:
            sandboxes = [new_sandbox(provider) for _ in range(8)]
            await sandboxes[0].start()
            starts = [asyncio.create_task(sandbox.start()) for sandbox in sandboxes[1:]]
            await asyncio.sleep(0.01)
            (container,) = containers()
            container.kill()
            await asyncio.wait(starts, timeout=20)
            for start in starts:
                start.exception()
            await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))
        held.append(len(os.listdir("/proc/self/fd")))
    assert held[-1] <= held[0]


async def test_an_absolute_link_for_tmp_stays_in_the_image(tmp_path: Path) -> None:
    image = make_tiny_image(tmp_path / "image")
    (image / "tmp").rmdir()
    (image / "tmp").symlink_to("/var/tmp")
    belong_to_container_user(image)
    async with new_provider("apptainer") as provider, started(provider, image=image) as sandbox:
        assert await output(sandbox, "touch /tmp/x; ls /var/tmp") == "x"
