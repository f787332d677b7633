"""What hostile commands try, and must not be able to do, in a sandbox that isolates."""

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.served import ServedSandbox
from tests.sandbox.helpers import bash, output, running


async def python(sandbox: ServedSandbox, program: str) -> str:
    await sandbox.upload("program.py", program.encode())
    return await output(sandbox, "python3 program.py")


@pytest.mark.parametrize(
    "path",
    [
        str(Path(__file__).parent),
        str(Path.home()),
        "/root",
        "/home",
        "/etc/shadow",
        "/etc/resolv.conf",
        "/etc/machine-id",
        "/var/log",
        "/var/run",
        "/sys",
        "/boot",
        "/proc/1/root/etc/shadow",
        "/dev/mem",
        "/dev/kvm",
        "/dev/vsock",
    ],
)
async def test_host_files_are_not_there(isolated: ServedSandbox, path: str) -> None:
    assert (await bash(isolated, f"ls -d {path}")).is_error


async def test_only_what_is_its_own_can_be_written(isolated: ServedSandbox) -> None:
    for directory in ("/", "/usr", "/usr/bin", "/etc", "/dev", "/run", "/run/prorl/lib", "/var"):
        assert (await bash(isolated, f"touch {directory}/file")).is_error, directory
    for path in ("/etc/passwd", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger"):
        assert (await bash(isolated, f"echo x >>{path}")).is_error, path
    for directory in ("/workspace", "/tmp", "/var/tmp", "/dev/shm", "$HOME", "."):
        await output(isolated, f"touch {directory}/file")


async def test_the_user_is_nobody_and_cannot_become_anybody(isolated: ServedSandbox) -> None:
    assert await output(isolated, "id -un; id -u; id -G") == "agent\n1000\n1000"
    status = await output(
        isolated, "grep -E '^(CapPrm|CapEff|NoNewPrivs|Seccomp):' /proc/self/status"
    )
    assert status.split() == (
        ["CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2"]
    )
    for command in (
        "unshare --user id",
        "unshare --mount id",
        "mount -t tmpfs x /tmp",
        "chroot / id",
    ):
        assert (await bash(isolated, command)).is_error, command


async def test_processes_of_the_host_are_not_seen(isolated: ServedSandbox) -> None:
    await bash(isolated, "sleep 1000 &")
    seen = await output(isolated, "cd /proc; echo [0-9]*")
    assert "1" in seen.split()
    assert len(seen.split()) <= 4
    assert (await bash(isolated, f"kill -0 {os.getpid()}")).is_error


async def test_its_server_cannot_be_ended(isolated: ServedSandbox) -> None:
    await bash(isolated, "KEPT=kept")
    for name in ("INT", "TERM", "HUP", "QUIT", "KILL", "STOP", "USR1", "CHLD"):
        await bash(isolated, f"kill -{name} 1")
    assert await output(isolated, "echo $KEPT") == "kept"
    result = await bash(isolated, "sh -c 'kill -KILL -1'")
    assert result.data["restarted"]
    assert await output(isolated, "echo alive") == "alive"


async def test_variables_of_the_service_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "very-secret")
    async with running("bubblewrap") as sandbox:
        everywhere = await output(sandbox, "env; cat /proc/*/environ | tr '\\0' '\\n'")
        own = await output(sandbox, "env")
    assert "HOME=/workspace" in everywhere
    assert "very-secret" not in everywhere
    assert "LD_LIBRARY_PATH" not in own


CONNECT = """
import socket, sys
for family, address in {targets!r}:
    with socket.socket(family) as connection:
        connection.settimeout(5)
        try:
            connection.connect(tuple(address) if isinstance(address, list) else address)
            print("connected to", address)
        except OSError as error:
            pass
print("done")
"""


async def test_no_network_not_even_the_hosts_loopback(isolated: ServedSandbox) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    abstract = f"\0prorl-test-{os.getpid()}"
    tcp = await asyncio.start_server(answer, "127.0.0.1", 0)
    unix = await asyncio.start_unix_server(answer, abstract)
    async with tcp, unix:
        port = tcp.sockets[0].getsockname()[1]
        targets = [(2, ["127.0.0.1", port]), (2, ["192.0.2.1", 80]), (1, abstract)]
        assert await python(isolated, CONNECT.format(targets=targets)) == "done"
    assert await output(isolated, "cat /proc/net/dev | wc -l") == "3"  # two of heading, and lo


RARE_CALLS = """
import ctypes, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
for name, number in {
    "keyctl": 250 if x86 else 219,
    "bpf": 321 if x86 else 280,
    "userfaultfd": 323 if x86 else 282,
    "io_uring_setup": 425,
}.items():
    assert libc.syscall(number, 0, 0, 0, 0) == -1, name
    assert ctypes.get_errno() == 1, (name, os.strerror(ctypes.get_errno()))
assert libc.syscall(435, 0, 0) == -1 and ctypes.get_errno() == 38  # clone3
for family in socket.AF_VSOCK, socket.AF_PACKET, socket.AF_ALG:
    try:
        socket.socket(family, socket.SOCK_SEQPACKET)
    except OSError as error:
        assert error.errno == 97, error
    else:
        raise AssertionError(family)
socket.socketpair(), socket.socket(socket.AF_INET), socket.socket(socket.AF_INET6)
print("done")
"""


async def test_rare_kernel_interfaces_are_refused(isolated: ServedSandbox) -> None:
    assert await python(isolated, RARE_CALLS) == "done"


async def test_sandboxes_do_not_see_each_other(isolated: ServedSandbox) -> None:
    async with running("bubblewrap") as other:
        for path in ("/tmp/mine", "/dev/shm/mine", "/workspace/mine"):
            await other.upload(path, b"mine")
            assert (await bash(isolated, f"ls {path}")).is_error
        await bash(other, "sleep 1000 & exec -a other-one sleep 1000 &")
        assert "other-one" not in await output(isolated, "cat /proc/*/cmdline | tr '\\0' ' '")
    assert await output(isolated, "find / -xdev -type s; wc -l </proc/net/unix") == "1"


async def test_a_fork_bomb_is_contained_and_survived() -> None:
    limits = SandboxLimits(processes=32)
    async with running("bubblewrap", limits) as sandbox, running("bubblewrap", limits) as other:
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


async def test_processes_are_counted_for_each_sandbox_by_itself() -> None:
    limits = SandboxLimits(processes=32)
    async with running("bubblewrap", limits) as one, running("bubblewrap", limits) as two:
        for sandbox in (one, two):
            assert await python(sandbox, FORKS) == str(32 - 3)  # server, bash, this one


async def test_a_memory_bomb_is_contained() -> None:
    async with running("bubblewrap", SandboxLimits(memory_mb=128)) as sandbox:
        result = await bash(sandbox, "python3 -c 'bytearray(200 << 20)'")
        assert result.is_error
        assert "MemoryError" in result.output
        assert await output(sandbox, "echo alive") == "alive"


async def test_the_disk_cannot_be_filled() -> None:
    limits = SandboxLimits(disk_mb=16, file_mb=4)
    async with running("bubblewrap", limits) as sandbox:
        for directory in ("/workspace", "/tmp", "/dev/shm"):
            fill = (
                f"for i in {{1..40}}; do head -c 4000000 /dev/zero >{directory}/$i || break; done"
            )
            result = await bash(sandbox, fill)
            assert "No space left" in result.output, directory
        written = await output(sandbox, "cat /workspace/* /tmp/* | wc -c")
        assert 12 << 20 < int(written) <= 16 << 20
        await output(sandbox, "rm /workspace/*; echo fits >file")


async def test_a_service_that_is_root_does_not_run_commands_as_root(
    isolated: ServedSandbox,
) -> None:
    assert isolated.server_pid is not None
    server = psutil.Process(isolated.server_pid)
    for process in [server, *server.children(recursive=True)]:
        assert 0 not in process.uids()
        assert 0 not in process.gids()
