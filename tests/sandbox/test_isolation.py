"""Hostile commands, which must fail in each kind of sandbox that isolates."""

import asyncio
import os
import pwd
from pathlib import Path

import psutil
import pytest

from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.kinds.bubblewrap import BubblewrapProvider
from tests.sandbox.sandboxes import ISOLATED, bash, open_to_others, output, python, running, started

pytestmark = pytest.mark.processes


def is_hosts_own(sandbox: RemoteSandbox) -> bool:
    """Returns whether the sandbox has the host's programs, which it cannot change."""
    return type(sandbox).__module__ == BubblewrapProvider.__module__


async def test_files_of_the_host_are_absent(isolated: RemoteSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret-of-the-host")
    open_to_others(tmp_path)
    for path in (
        tmp_path,
        Path(__file__).parent,
        "/var/lib/dpkg/lock",
        "/sys/kernel",
        "/boot/grub",
    ):
        assert (await bash(isolated, f"ls -d {path}")).is_error, path
    for device in ("mem", "kmsg", "kvm", "vsock", "fuse", "vda", "loop0"):
        assert (await bash(isolated, f"ls -d /dev/{device}")).is_error, device
    found = (
        "grep -rlsI secret-of-the-host / --exclude-dir=proc --exclude-dir=usr --exclude-dir=lib*"
        " --exclude-dir=programs"  # gigabytes of harnesses, where they are installed
    )
    assert (await bash(isolated, found)).output == "[exit code 1]"


async def test_links_and_proc_do_not_lead_outside(isolated: RemoteSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    ways = ("", "/proc/1/root", "/proc/1/cwd/../..", "/proc/self/root", "/proc/thread-self/root")
    for number, way in enumerate(ways):
        await bash(isolated, f"ln -s {way}{tmp_path}/secret link{number}")
        with pytest.raises(FileNotFoundError):
            await isolated.download(f"link{number}")
        with pytest.raises(OSError, match=r"Permission denied|No such file|Read-only"):
            await isolated.upload(f"{way}/proc/sys/kernel/core_pattern", b"|/bin/false")
    await bash(isolated, "ln -s /etc/passwd passwd; echo intruder::0:0::/:/bin/sh >>passwd")
    assert "intruder" not in {entry.pw_name for entry in pwd.getpwall()}


async def test_a_sandbox_can_write_only_to_its_own_files(isolated: RemoteSandbox) -> None:
    hosts = ("/", "/usr", "/usr/bin", "/etc", "/dev", "/run", "/run/prorl/lib", "/var")
    for directory in hosts if is_hosts_own(isolated) else ("/dev", "/.prorl", "/.prorl/lib/execd"):
        assert (await bash(isolated, f"touch {directory}/file")).is_error, directory
    for path in ("sys/kernel/core_pattern", "sysrq-trigger", "sys/kernel/hostname", "1/mem"):
        assert (await bash(isolated, f"echo x >>/proc/{path}")).is_error, path
    for directory in ("/workspace", "/tmp", "/var/tmp", "/dev/shm", "$HOME", "."):
        await output(isolated, f"touch {directory}/file")


async def test_the_user_has_no_privileges_outside_and_cannot_gain_any(
    isolated: RemoteSandbox,
) -> None:
    fields = "Cap(Prm|Eff|Amb)|NoNewPrivs|Seccomp"
    status = await output(isolated, f"grep -E '^({fields}):' /proc/self/status")
    values = dict(line.split(":\t") for line in status.splitlines())
    assert (values["NoNewPrivs"], values["Seccomp"]) == ("1", "2")
    if is_hosts_own(isolated):
        assert await output(isolated, "id -un; id -u; id -G") == "agent\n1000\n1000"
        harmless = 0
    else:
        assert await output(isolated, "id -un; id -u; id -G") == "root\n0\n0"
        harmless = 0b11011011  # what root needs for its files: chown, dac_override, setuid...
    for name in ("CapPrm", "CapEff", "CapAmb"):
        assert int(values[name], 16) & ~harmless == 0, name
    for command in (
        "unshare --user id",
        "unshare --mount id",
        "mount -t tmpfs x /tmp",
        "mount --bind /proc /tmp",
        "umount /proc",
        "chroot / id",
        "mknod /tmp/disk b 254 0",
        "hostname other",
        "ip link set lo down || nsenter --target 1 --net true",
    ):
        assert (await bash(isolated, command)).is_error, command


async def test_processes_of_the_host_are_invisible(isolated: RemoteSandbox) -> None:
    await bash(isolated, "sleep 1000 &")
    seen = await output(isolated, "cd /proc; echo [0-9]*")
    assert "1" in seen.split()
    assert len(seen.split()) <= 4
    assert (await bash(isolated, f"kill -0 {os.getpid()}")).is_error


async def test_commands_cannot_end_the_sandboxs_server(isolated: RemoteSandbox) -> None:
    await bash(isolated, "KEPT=kept")
    for name in ("INT", "TERM", "HUP", "QUIT", "KILL", "STOP", "USR1", "CHLD"):
        await bash(isolated, f"kill -{name} 1")
    assert await output(isolated, "echo $KEPT") == "kept"
    result = await bash(isolated, "sh -c 'kill -KILL -1'")
    assert result.data["restarted"]
    assert await output(isolated, "echo alive") == "alive"


async def test_variables_of_the_service_are_invisible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "very-secret")
    monkeypatch.setenv("APPTAINERENV_SERVICE_TOKEN", "very-secret")
    for kind in ISOLATED:
        async with running(kind) as sandbox:
            everywhere = await output(sandbox, "env; cat /proc/*/environ 2>&1 | tr '\\0' '\\n'")
            own = await output(sandbox, "env")
        assert "PAGER=cat" in everywhere
        assert "very-secret" not in everywhere
        assert "LD_LIBRARY_PATH" not in own
        assert "APPTAINER" not in own


async def test_commands_cannot_inspect_the_sandboxs_server(isolated: RemoteSandbox) -> None:
    for file in ("mem", "environ", "maps", "fd/0", "root/etc/passwd"):
        assert (await bash(isolated, f"cat /proc/1/{file} | head -c 1 | grep .")).is_error, file
    assert await python(isolated, TRACE) == "not permitted"


TRACE = """
import ctypes
PTRACE_ATTACH, EPERM = 16, 1
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(PTRACE_ATTACH, 1, 0, 0) == -1
print("not permitted" if ctypes.get_errno() == EPERM else ctypes.get_errno())
"""


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


async def test_there_is_no_network_not_even_the_hosts_loopback(isolated: RemoteSandbox) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    abstract = f"\0prorl-test-{os.getpid()}"
    tcp = await asyncio.start_server(answer, "127.0.0.1", 0)
    unix = await asyncio.start_unix_server(answer, abstract)
    async with tcp, unix:
        port = tcp.sockets[0].getsockname()[1]
        targets = [(2, ["127.0.0.1", port]), (2, ["192.0.2.1", 80]), (1, abstract)]
        assert await python(isolated, CONNECT.format(targets=targets)) == "done"
    assert await output(isolated, "cat /proc/net/dev | wc -l") == "3"  # two header lines, and lo


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


async def test_rare_kernel_interfaces_are_refused(isolated: RemoteSandbox) -> None:
    assert await python(isolated, RARE_CALLS) == "done"


async def test_sandboxes_do_not_see_each_other(isolating: SandboxProvider) -> None:
    async with started(isolating) as one, started(isolating) as other:
        for path in ("/tmp/mine", "/dev/shm/mine", "/workspace/mine"):
            await other.upload(path, b"mine")
            assert (await bash(one, f"ls {path}")).is_error
        await bash(other, "sleep 1000 & exec -a other-one sleep 1000 &")
        assert "other-one" not in await output(one, "cat /proc/*/cmdline | tr '\\0' ' '")
        assert await output(one, "find / -xdev -type s; wc -l </proc/net/unix") == "1"
        inherited = "ls -l /proc/self/fd /proc/$$/fd | grep -v 'pipe\\|pts\\|null\\|/proc/'"
        assert "socket" not in (await bash(one, inherited)).output
        await python(other, LISTEN)
        assert "refused" in await python(one, KNOCK)


LISTEN = """
import socket, os
server = socket.socket(socket.AF_UNIX)
server.bind("\\0meeting-point")
server.listen()
if os.fork() == 0:
    server.accept()
"""

KNOCK = """
import socket
try:
    socket.socket(socket.AF_UNIX).connect("\\0meeting-point")
except ConnectionRefusedError:
    print("refused")
"""


async def test_changes_in_one_sandbox_are_invisible_to_others(isolating: SandboxProvider) -> None:
    """Thus a verdict from a fresh sandbox does not depend on the one that the model worked in."""
    if isolating.kind == "bubblewrap":
        tampering = "rm -f /usr/bin/git; echo exit 0 >/usr/bin/python3; echo x >>/etc/passwd"
    else:
        tampering = (
            "rm /usr/bin/git && printf '#!/bin/sh\\nexit 0\\n' >/usr/bin/python3.11 &&"
            " echo x >>/etc/passwd && mkdir /usr/lib/python3/dist-packages/sitecustomize"
        )
    probe = "git --version; python3 -c 'print(6 * 7)'; tail -n 1 /etc/passwd; ls /usr/lib/python3*"
    async with started(isolating) as clean:
        expected = await output(clean, probe)
        assert "42" in expected
        async with started(isolating) as tampered:
            await bash(tampered, tampering)
            async with started(isolating) as fresh:
                for sandbox in (clean, fresh):
                    assert await output(sandbox, probe) == expected


async def test_a_service_that_is_root_does_not_run_commands_as_root(
    isolated: RemoteSandbox,
) -> None:
    assert isolated.server_pid is not None
    server = psutil.Process(isolated.server_pid)
    for process in [server, *server.children(recursive=True)]:
        assert 0 not in process.uids()
        assert 0 not in process.gids()
