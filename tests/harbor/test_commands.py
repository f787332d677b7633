"""Commands in our sandboxes, as Harbor's agents and verifiers run them."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.harbor.environments import Making

pytestmark = pytest.mark.processes

FORK_OFTEN = """
import os, time
for _ in range(80):
    if os.fork() == 0:
        time.sleep(5)
        os._exit(0)
"""
FORK_FOREVER = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(100)
    except OSError:
        time.sleep(0.01)
"""


async def test_stdout_stderr_and_the_return_code_come_back_apart_and_unchanged(
    making: Making,
) -> None:
    environment = await making.started()
    command = r"printf 'a\r\n\tb  '; printf 'é\x1b[0m\n' >&2; exit 7"
    done = await environment.exec(command)
    assert (done.stdout, done.stderr, done.return_code) == ("a\r\n\tb  ", "é\x1b[0m\n", 7)
    silent = await environment.exec("true")
    assert (silent.stdout, silent.stderr, silent.return_code) == (None, None, 0)
    killed = await environment.exec("kill -KILL $$")
    assert killed.return_code == 137


async def test_output_far_beyond_the_models_bound_is_exact(making: Making) -> None:
    environment = await making.started()
    done = await environment.exec("seq 1000000; seq 1000000 >&2")
    expected = "".join(f"{number}\n" for number in range(1, 1_000_001))
    assert done.stdout == expected
    assert done.stderr == expected


async def test_a_flood_keeps_its_head_and_tail_and_says_how_much_is_left_out(
    making: Making,
) -> None:
    from prorl_harbor.commands import OUTPUT_BYTES

    environment = await making.started()
    done = await environment.exec("head -c 50000000 /dev/zero | tr '\\0' x; printf end")
    assert done.stdout is not None
    head, _, rest = done.stdout.partition("\n[")
    note, _, tail = rest.partition("]\n")
    left_out = int(note.split()[0])
    assert head == "x" * (OUTPUT_BYTES // 2)
    assert tail.endswith("xend")
    assert len(head) + left_out + len(tail) == 50_000_003
    assert len(tail) >= OUTPUT_BYTES // 2


async def test_commands_run_where_and_with_what_they_are_told(making: Making) -> None:
    environment = await making.started(
        {"workdir": "/made/here", "env": {"A": "task", "B": "task"}},
        persistent_env={"B": "run"},
    )
    shown = 'echo "$PWD $A $B $HOME $(id -u)"'
    done = await environment.exec(shown)
    assert done.stdout == "/made/here task run /root 0\n"
    with environment.scoped_exec_env({"C": "x y\n'\""}):
        scoped = await environment.exec('printf %s "$C$A"', env={"A": "call", "C": "lost"})
    assert scoped.stdout == "x y\n'\"call"
    assert (await environment.exec("pwd", cwd="/tmp")).stdout == "/tmp\n"
    assert (await environment.exec("mkdir sub && pwd", cwd=".")).stdout == "/made/here\n"
    assert (await environment.exec("pwd", cwd="sub")).stdout == "/made/here/sub\n"
    missing = await environment.exec("pwd", cwd="/nowhere")
    assert (missing.return_code, missing.stderr) == (127, "/nowhere: No such file or directory\n")


async def test_commands_have_the_default_handlers_of_signals_and_no_terminal(
    making: Making,
) -> None:
    environment = await making.started()
    # Signals 32 and 33 belong to the C library: no program can reset those that it inherits.
    shown = "echo $((0x$(sed -n 's/SigIgn:.//p' /proc/self/status) & ~(3 << 31)))"
    done = await environment.exec(f"{shown}; tty; read line; echo $?")
    assert done.stdout == "0\nnot a tty\n1\n"
    pipe = await environment.exec("yes | head -1; echo ${PIPESTATUS[0]}")
    assert pipe.stdout == "y\n141\n"


async def test_a_time_out_ends_the_command_with_its_children(making: Making) -> None:
    environment = await making.started()
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        await environment.exec("echo early; sleep 1234 & sleep 1234", timeout_sec=1)
    left = await environment.exec("grep -l 1234 /proc/[0-9]*/cmdline 2>/dev/null | wc -l")
    assert left.stdout is not None
    assert int(left.stdout) <= 2  # the shell and grep themselves have the number in theirs


async def test_a_cancelled_command_ends_and_the_sandbox_goes_on(making: Making) -> None:
    environment = await making.started()
    running = asyncio.create_task(environment.exec("sleep 1234; touch /tmp/done"))
    await _until(environment, "pgrep -x sleep")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await _until(environment, "! pgrep -x sleep")
    assert not await environment.is_file("/tmp/done")


async def _until(environment: object, command: str, budget_s: float = 20) -> None:
    deadline = time.monotonic() + budget_s
    while (await environment.exec(command)).return_code:  # type: ignore[attr-defined]
        assert time.monotonic() < deadline, command


async def test_a_server_left_in_the_background_lives_and_holds_nothing_up(making: Making) -> None:
    environment = await making.started()
    began_at = time.monotonic()
    done = await environment.exec("(while sleep 0.01; do echo noise; done) & echo started")
    assert done.stdout is not None
    assert done.stdout.startswith("started\n")
    assert time.monotonic() - began_at < 60
    await environment.exec("sleep 0.3")
    assert (await environment.exec("pgrep -c -x sleep || true")).return_code == 0
    assert (await environment.exec("pgrep -f 'echo noise'")).return_code == 0


async def test_commands_run_at_the_same_time(making: Making) -> None:
    environment = await making.started()
    meet = "mkfifo {0} 2>/dev/null; echo {1} > {0} & read other < {2}; echo $other"
    await environment.exec("mkfifo /tmp/a /tmp/b")
    one, two = await asyncio.gather(
        environment.exec(meet.format("/tmp/a", "one", "/tmp/b"), timeout_sec=30),
        environment.exec(meet.format("/tmp/b", "two", "/tmp/a"), timeout_sec=30),
    )
    assert (one.stdout, two.stdout) == ("two\n", "one\n")


async def test_output_is_passed_on_while_the_command_runs(making: Making) -> None:
    environment = await making.started()
    texts: list[tuple[str, str]] = []
    first = asyncio.Event()

    async def on_output(text: str, stream: str) -> None:
        texts.append((text, stream))
        first.set()

    with environment.scoped_output_callback(on_output):
        running = asyncio.create_task(
            environment.exec("echo one; until [ -e /tmp/go ]; do sleep 0.01; done; echo two >&2")
        )
    async with asyncio.timeout(20):
        await first.wait()
    assert texts == [("one\n", "stdout")]
    await environment.exec("touch /tmp/go")
    await running
    assert texts == [("one\n", "stdout"), ("two\n", "stderr")]


async def test_there_is_no_network_and_no_other_process(making: Making) -> None:
    environment = await making.started()
    done = await environment.exec("cat /proc/net/dev | grep -c : ; ls /proc | grep -c '^[0-9]'")
    assert done.stdout is not None
    devices, processes = map(int, done.stdout.split())
    assert devices == 1
    assert processes <= 5


async def test_limits_hold(making: Making) -> None:
    environment = await making.started({"memory_mb": 200, "storage_mb": 20}, processes=50)
    hungry = await environment.exec("python3 -c 'x = bytearray(300 << 20)'")
    assert hungry.return_code != 0
    assert "MemoryError" in (hungry.stderr or "")
    full = await environment.exec("head -c 30000000 /dev/zero > /filled")
    assert "No space left" in (full.stderr or "")
    many = await environment.exec(f"python3 -c '{FORK_OFTEN}'")
    assert "BlockingIOError" in (many.stderr or "")


async def test_when_no_process_can_start_a_command_says_so(making: Making) -> None:
    environment = await making.started(processes=20)
    filling = asyncio.create_task(environment.exec(f"exec python3 -c '{FORK_FOREVER}'"))
    async with asyncio.timeout(60):
        while (done := await environment.exec("true")).return_code != 126:
            assert done.return_code == 0 or "Resource temporarily unavailable" in str(done.stderr)
    assert done.stderr == "no process can be started: Resource temporarily unavailable\n"
    filling.cancel()


async def test_a_stopped_environment_refuses_and_starts_again_fresh(making: Making) -> None:
    environment = await making.started()
    await environment.exec("touch /marker")
    await environment.stop(delete=False)
    await environment.stop(delete=True)
    with pytest.raises(RuntimeError, match="was not started, or has been stopped"):
        await environment.exec("true")
    await environment.start(force_build=False)
    assert not await environment.is_file("/marker")


async def test_files_of_environment_are_in_the_workdir(making: Making, tmp_path: Path) -> None:
    (making.directory / "data").mkdir()
    (making.directory / "data" / "run").write_text("#!/bin/sh\necho ran\n")
    os.chmod(making.directory / "data" / "run", 0o755)
    environment = await making.started({"workdir": "/app"})
    assert (await environment.exec("data/run")).stdout == "ran\n"
