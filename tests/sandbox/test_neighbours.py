"""A sandbox that takes all it can of what the kernel counts per user, and its neighbours."""

import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from prorl_service.sandbox.base import SandboxLimits, SandboxProvider
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from prorl_service.sandbox.host.spec import OPEN_FILES
from tests.programs import ran
from tests.sandbox.sandboxes import bash, output, started

pytestmark = pytest.mark.processes

TAKE = """
import ctypes, json, os, time
libc = ctypes.CDLL(None, use_errno=True)

class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("rest", ctypes.c_char * 48)]

class Attributes(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_long), ("messages", ctypes.c_long), ("size", ctypes.c_long),
                ("now", ctypes.c_long), ("rest", ctypes.c_long * 4)]

def timer(_):
    event, made = Event(notify=1), ctypes.c_void_p()  # SIGEV_NONE
    return libc.timer_create(0, ctypes.byref(event), ctypes.byref(made))

def watch(number):
    os.makedirs(f"/tmp/w/{number}")
    return libc.inotify_add_watch(first, f"/tmp/w/{number}".encode(), 2)

def queue(number):
    attributes = Attributes(messages=10, size=1024)
    return libc.mq_open(b"/q%d" % number, os.O_CREAT | os.O_RDWR, 0o600, ctypes.byref(attributes))

def taken(take, most):
    for number in range(most):
        if take(number) < 0:
            return number
    return most

first = libc.inotify_init()
found = {
    "inotify": taken(lambda _: libc.inotify_init(), MOST["inotify"]),
    "watches": taken(watch, MOST["watches"]),
    "timers": taken(timer, MOST["timers"]),
    "queues": taken(queue, MOST["queues"]),
}
print(json.dumps(found), flush=True)
if MOST["inotify"] > 10:
    time.sleep(1000)
"""
ALL = {"inotify": 1000, "watches": 12_000, "timers": 200_000, "queues": 200}
SOME = {"inotify": 2, "watches": 20, "timers": 50, "queues": 2}
ROOMY = SandboxLimits(disk_mb=256)


async def taken(sandbox: RemoteSandbox, most: dict[str, int]) -> dict[str, int]:
    """Returns how much of each a program got; the greedy one keeps it until the sandbox ends."""
    await sandbox.upload("take.py", f"MOST = {most}\n{TAKE}".encode())
    await bash(sandbox, "python3 take.py >taken 2>&1 &\nuntil [ -s taken ]; do sleep 0.05; done")
    found: dict[str, int] = json.loads(await sandbox.download("taken"))
    return found


async def test_tables_of_the_kernel_are_shared_fairly(isolating: SandboxProvider) -> None:
    async with started(isolating, ROOMY) as hostile, started(isolating) as neighbour:
        got = await taken(hostile, ALL)
        assert await taken(neighbour, SOME) == SOME
        for name, most in ALL.items():
            assert SOME[name] <= got[name] < most, name


FLIGHT = """
import os, socket, time
kept = []
try:
    while True:
        pair = socket.socketpair()
        kept.append(pair)
        pair[0].setblocking(False)
        try:
            while True:
                socket.send_fds(pair[0], [b"x"], [0] * 100)
        except BlockingIOError:
            pass
except OSError as error:
    print(error.errno, flush=True)
time.sleep(1000)
"""

OTHERS_START = """
import asyncio, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))
from tests.sandbox.sandboxes import new_provider, output, started

async def main():
    async with new_provider({kind!r}) as provider:
        async with started(provider) as hostile:
            await hostile.upload("flight.py", {flight!r}.encode())
            await output(hostile, "python3 flight.py >sent & until [ -s sent ]; do sleep 0.1; done")
            print(await output(hostile, "cat sent"))
            async with started(provider) as neighbour:
                print(await output(neighbour, "echo unharmed"))
            print(await output(hostile, "echo alive"))

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["bubblewrap", "apptainer"])
def test_descriptors_in_flight_stop_no_start_under_a_low_file_limit(kind: str) -> None:
    """The limits are those of an ordinary user with `ulimit -n 1024`; the kernel counts all of the
    user's processes together."""
    program = OTHERS_START.format(kind=kind, flight=FLIGHT)
    done = ran(sys.executable, "-c", program, cwd=Path(__file__).parents[2])
    assert done.stdout.splitlines() == ["109", "unharmed", "alive"], done.stderr  # ETOOMANYREFS


async def test_a_sandbox_may_open_fewer_files_than_the_service(isolated: RemoteSandbox) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = int(await output(isolated, "ulimit -Hn"))
    assert most == min(OPEN_FILES, hard // 2)


BUFFERS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
accepted, _ = server.accept()
client.setblocking(False)
sent = 0
try:
    while True:
        sent += client.send(bytes(65536))
except BlockingIOError:
    print(sent)
"""


async def test_a_connection_holds_little_kernel_memory(isolated: RemoteSandbox) -> None:
    await isolated.upload("buffers.py", BUFFERS.encode())
    assert int(await output(isolated, "python3 buffers.py")) < 1 << 20


def of_kernel(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text().strip()


async def test_every_process_inside_stays_the_oom_killers_first_choice(
    isolated: RemoteSandbox,
) -> None:
    assert isolated.server_pid is not None
    assert of_kernel(isolated.server_pid, "oom_score_adj") == "1000"
    for who in ("self", "$$", "1"):
        assert (await bash(isolated, f"echo 0 >/proc/{who}/oom_score_adj")).is_error, who
    assert await output(isolated, "cat /proc/self/oom_score_adj /proc/$$/oom_score_adj") == (
        "1000\n1000"
    )
    arguments: dict[str, Any] = {
        "command": "str_replace",
        "path": "/proc/1/oom_score_adj",
        "old_str": "1000",
        "new_str": "0",
    }
    edited = await isolated.call_tool("str_replace_editor", arguments, timeout_s=10)
    assert edited.is_error
    with pytest.raises(OSError, match="Read-only"):
        await isolated.upload("/proc/1/oom_score_adj", b"0")
    assert of_kernel(isolated.server_pid, "oom_score_adj") == "1000"


SCHEDULING = """
import os
for name, change in {
    "affinity": lambda: os.sched_setaffinity(1, {0}),
    "niceness": lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    "niceness of its group": lambda: os.setpriority(os.PRIO_PGRP, 1, 19),
    "niceness of its user": lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19),
    "policy": lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),
    "parameters": lambda: os.sched_setparam(1, os.sched_param(0)),
}.items():
    try:
        change()
    except PermissionError:
        continue
    print(name)
os.sched_setaffinity(0, {0})
os.setpriority(os.PRIO_PROCESS, 0, 15)
os.setpriority(os.PRIO_PGRP, 0, 16)
"""
IO_IDLE = "ionice -c 3"


async def test_commands_cannot_change_the_servers_limits_or_scheduling(
    isolated: RemoteSandbox,
) -> None:
    for command in ("prlimit --pid 1 --nofile=3:3", "chrt --idle --pid 0 1"):
        assert (await bash(isolated, command)).is_error, command
    assert not (await bash(isolated, "prlimit --pid $$ --nofile=99 && chrt -i -p 0 $$")).is_error
    assert await output(isolated, "sleep 0.3; echo alive") == "alive"
    assert isolated.server_pid is not None
    await isolated.upload("scheduling.py", SCHEDULING.encode())
    assert await output(isolated, "python3 scheduling.py") == ""
    for who in ("-p 1", "-P 1", "-u $(id -u)"):
        assert (await bash(isolated, f"{IO_IDLE} {who}")).is_error, who
        assert "idle" not in await output(isolated, "ionice -p 1"), who
    assert await output(isolated, f"{IO_IDLE} -p $$; ionice -p $$") == "idle"
    assert len(os.sched_getaffinity(isolated.server_pid)) == os.cpu_count()
