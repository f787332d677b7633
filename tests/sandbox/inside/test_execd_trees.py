"""Snapshots of trees, whatever they hold, and files that are too large for one step."""

import asyncio
import io
import tarfile
from contextlib import suppress

import psutil
import pytest

from prorl_service.errors import SandboxError
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.sandboxes import LIMITS, Kind, bash, output, running

pytestmark = [pytest.mark.processes, pytest.mark.unprivileged]


def members(tar: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
        return {member.name: member for member in archive}


def content(tar: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
        file = archive.extractfile(name)
        assert file is not None
        return file.read()


def assert_only_the_shell_runs(sandbox: RemoteSandbox) -> None:
    assert sandbox.server_pid is not None
    shell, *others = psutil.Process(sandbox.server_pid).children(recursive=True)
    assert shell.name() == "bash"
    assert not psutil.wait_procs(others, timeout=10)[1]


async def test_a_tree_is_restored_as_it_was(in_any_kind: RemoteSandbox) -> None:
    await bash(
        in_any_kind,
        "mkdir -p tree/a/b tree/empty; cd tree && echo x >a/b/x && chmod 750 a/b/x"
        " && ln -s a/b/x l && touch 'name with\nline end'"
        " && head -c 3000000 /dev/urandom >big && : >none; cd ..",
    )
    tar = await in_any_kind.snapshot("tree")
    assert list(members(tar)) == [
        "a",
        "a/b",
        "a/b/x",
        "big",
        "empty",
        "l",
        "name with\nline end",
        "none",
    ]
    await in_any_kind.restore("copy/of/it", tar)
    assert (
        await output(in_any_kind, "diff -r tree copy/of/it; stat -c %a copy/of/it/a/b/x") == "750"
    )
    assert await output(in_any_kind, "readlink copy/of/it/l") == "a/b/x"
    again = await in_any_kind.snapshot("copy/of/it")
    assert list(members(again)) == list(members(tar))
    assert await in_any_kind.snapshot("tree") == tar


async def test_a_hostile_tree_does_no_harm(isolated: RemoteSandbox) -> None:
    await bash(
        isolated,
        "mkdir t; cd t; ln -s /etc out; ln -s loop loop; mkfifo fifo; echo kept >kept;"
        " python3 -c 'import socket; socket.socket(1).bind(\"socket\")'; ln -s /dev/zero zero;"
        " touch $'\\xff\\xfe'; ln kept hard; cd ..",
    )
    tar = await isolated.snapshot("t")
    found = members(tar)
    assert sorted(found) == sorted(["out", "loop", "kept", "zero", "hard", "\udcff\udcfe"])
    assert found["out"].issym()
    assert content(tar, "hard") == b"kept\n"
    deep = "import os\nfor _ in range(1000):\n os.mkdir('d')\n os.chdir('d')"
    await isolated.upload("deep.py", deep.encode())
    await bash(isolated, "mkdir deep; (cd deep; python3 ../deep.py)")
    with pytest.raises(OSError, match="symbolic links"):
        await isolated.snapshot("deep")
    assert await output(isolated, "echo alive") == "alive"


async def test_an_unreadable_directory_fails_the_snapshot() -> None:
    async with running("bubblewrap") as sandbox:
        await bash(sandbox, "mkdir closed; mkdir -m 0 closed/x")
        with pytest.raises(PermissionError):
            await sandbox.snapshot("closed")


async def test_a_tree_may_change_while_it_is_read(isolated: RemoteSandbox) -> None:
    churn = "while :; do echo x >t/a; mkdir t/d; mv t/a t/d/b; rm -rf t/d; done"
    await bash(isolated, f"mkdir t; ({churn}) 2>/dev/null &")
    taken = 0
    for _ in range(20):
        try:
            members(await isolated.snapshot("t"))
            taken += 1
        except OSError:
            pass
    assert taken


async def test_a_tree_that_is_too_large_is_refused(kind: Kind) -> None:
    async with running(kind, SandboxLimits(file_mb=2)) as sandbox:
        await bash(sandbox, "mkdir t; cd t; for i in 1 2 3; do head -c 900000 /dev/zero >$i; done")
        with pytest.raises(OSError, match="File too large"):
            await sandbox.snapshot("t")
        with pytest.raises(OSError, match="too large"):
            await sandbox.restore("t", bytes(3 << 20))
        for path in ("t/1", "none"):
            with pytest.raises(OSError, match=path):
                await sandbox.snapshot(path)


@pytest.mark.parametrize("name", ["../out", "l/out"])
async def test_nothing_is_restored_outside_the_directory(
    isolated: RemoteSandbox, name: str
) -> None:
    await bash(isolated, "mkdir in; ln -s .. in/l")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(PermissionError):
        await isolated.restore("in", made.getvalue())
    assert await output(isolated, "ls") == "in"


async def test_content_that_is_no_tar_is_refused(sandbox: RemoteSandbox) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        await sandbox.restore("t", b"no tar")


async def test_large_files_do_not_hold_up_other_calls(kind: Kind) -> None:
    limits = SandboxLimits(file_mb=64, disk_mb=512)
    async with running(kind, limits) as sandbox:
        large = bytes(range(256)) * (50 << 12)
        upload = asyncio.create_task(sandbox.upload("large", large))
        assert await output(sandbox, "echo meanwhile") == "meanwhile"
        await upload
        download = asyncio.create_task(sandbox.download("large"))
        snapshot = asyncio.create_task(sandbox.snapshot("."))
        for _ in range(20):
            await sandbox.ping(timeout_s=20)
        assert await output(sandbox, "echo meanwhile") == "meanwhile"
        assert await download == large
        assert content(await snapshot, "large") == large


async def test_a_cancelled_snapshot_ends_inside(isolated: RemoteSandbox) -> None:
    await bash(isolated, "head -c 7000000 /dev/zero >file")
    for _ in range(5):
        call = asyncio.create_task(isolated.snapshot("."))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert len(await isolated.download("file")) == 7_000_000
    assert_only_the_shell_runs(isolated)


async def test_a_sandbox_at_its_process_limit_refuses_large_downloads(
    isolated: RemoteSandbox,
) -> None:
    await bash(isolated, "head -c 3000000 /dev/zero >file")
    with suppress(BlockingIOError):
        for _ in range(LIMITS.processes):
            await isolated.download("file")
            await bash(isolated, "sleep 1000 &")
    with pytest.raises(BlockingIOError):
        await isolated.download("file")
    await isolated.upload("small", b"x")
    assert await isolated.download("small") == b"x"


async def test_a_file_of_proc_is_read_only_if_it_ends(sandbox: RemoteSandbox) -> None:
    assert b"MemTotal" in await sandbox.download("/proc/meminfo")
    with pytest.raises(OSError, match="pagemap"):
        await sandbox.download("/proc/self/pagemap")


async def test_ping_fails_on_a_stopped_sandbox(kind: Kind) -> None:
    async with running(kind) as sandbox:
        await sandbox.ping(timeout_s=20)
        await sandbox.stop()
        with pytest.raises(SandboxError, match="stopped"):
            await sandbox.ping(timeout_s=20)
