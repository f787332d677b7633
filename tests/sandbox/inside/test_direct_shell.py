"""The shell's moves between the service and the execution server, which no result shows."""

import asyncio
import os
import random

import pytest

from prorl_service.sandbox.host import direct_shell
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.sandboxes import bash, output
from tests.waits import condition

pytestmark = [pytest.mark.processes, pytest.mark.unprivileged]


def lent(sandbox: RemoteSandbox) -> bool:
    assert sandbox._shell is not None
    return sandbox._shell._lent


async def test_short_commands_never_reach_the_execution_server(sandbox: RemoteSandbox) -> None:
    await bash(sandbox, "cd /usr; X=kept")
    assert lent(sandbox)
    assert sandbox.server_pid is not None
    server = sandbox.server_pid
    os.kill(server, 19)
    try:
        assert await output(sandbox, "echo $X $PWD") == "kept /usr"
        assert (await bash(sandbox, "echo out; false")).output == "out\n[exit code 1]"
    finally:
        os.kill(server, 18)
    assert lent(sandbox)


async def test_results_are_the_same_wherever_a_command_runs(sandbox: RemoteSandbox) -> None:
    odd = "printf '\\377\\0\\036'"
    for command in ["", "printf 'a\\r\\nb'", "echo \\'; (exit 7)", odd, "if", "set -e"]:
        sandbox._return_shell(sandbox._shell.give_up()[0] if sandbox._shell else b"")
        by_server = await bash(sandbox, command)
        assert lent(sandbox)
        assert await bash(sandbox, command) == by_server


async def test_a_longer_command_goes_back_with_its_output_intact(sandbox: RemoteSandbox) -> None:
    await bash(sandbox, "true")
    command = "for i in $(seq 300); do printf '%s ' $i; [ $((i % 100)) = 50 ] && sleep 0.3; done"
    expected = " ".join(map(str, range(1, 301)))
    for _ in range(3):
        assert await output(sandbox, f"{command}; true") == expected + " "
        assert lent(sandbox)


async def test_a_timeout_counts_the_time_in_both_places(
    sandbox: RemoteSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_shell, "SHORT_S", 20)
    await bash(sandbox, "true")
    result = await bash(sandbox, "sleep 3.5", timeout_s=2)
    assert result.output.endswith("[timed out after 2 s]")


async def test_a_command_with_much_output_goes_back(sandbox: RemoteSandbox) -> None:
    await bash(sandbox, "true")
    result = await bash(sandbox, "yes | head -c 300000; echo the end")
    assert result.data["truncated"]
    assert result.output.endswith("the end\n")
    assert await output(sandbox, "echo next") == "next"


async def test_a_command_with_output_in_many_pieces_goes_back(
    sandbox: RemoteSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_shell, "SHORT_S", 100)
    await bash(sandbox, "true")
    command = "while [ ! -e go ]; do printf x; sleep 0.01; done; echo end"
    call = asyncio.create_task(bash(sandbox, command))
    await condition(lambda: not lent(sandbox))
    await sandbox.upload("go", b"")
    output = (await call).output
    assert output.endswith("xend\n")
    assert set(output) == set("xend\n")


async def test_background_output_comes_with_the_next_result(sandbox: RemoteSandbox) -> None:
    await bash(sandbox, "true")
    shell = sandbox._shell
    assert shell is not None
    await bash(sandbox, "(sleep 0.1; echo from behind) &")
    await condition(lambda: shell._output == b"from behind\n")
    assert (await bash(sandbox, "echo now")).output.startswith("from behind\nnow\n")


async def test_the_service_does_not_read_a_flood_between_commands(sandbox: RemoteSandbox) -> None:
    await bash(sandbox, "true")
    await bash(sandbox, "yes & echo $! > pid")
    await condition(lambda: not lent(sandbox))
    result = await bash(sandbox, "kill $(cat pid); wait; echo ended")
    assert result.data["truncated"]
    assert "ended" in result.output
    assert await output(sandbox, "echo after") == "after"


async def test_a_lent_shell_that_ends_is_replaced_and_the_new_one_is_lent(
    sandbox: RemoteSandbox,
) -> None:
    for end, code in {"exit 3": 3, "kill -9 $$": 137, "exec sh -c 'echo last; exit 4'": 4}.items():
        await bash(sandbox, "true")
        assert lent(sandbox)
        result = await bash(sandbox, end)
        assert (result.data["exit_code"], result.data["restarted"]) == (code, True), end
        assert ("last" in result.output) == ("last" in end)
    await bash(sandbox, "true")
    assert lent(sandbox)
    assert await output(sandbox, "echo new") == "new"


async def test_a_lent_shell_that_ends_by_itself_is_replaced(sandbox: RemoteSandbox) -> None:
    await bash(sandbox, "(sleep 0.1; kill -9 $$) &")
    await condition(lambda: not lent(sandbox))
    result = await bash(sandbox, "echo new")
    assert result.data["restarted"]  # and the command was run, or went down with the old shell
    assert await output(sandbox, "echo newer") == "newer"


@pytest.mark.parametrize("command", ["echo mine; sleep 1000", "true"])
async def test_a_cancelled_short_command_ends_and_leaves_nothing(
    sandbox: RemoteSandbox, command: str
) -> None:
    await bash(sandbox, "true")
    for _ in range(20):
        call = asyncio.create_task(bash(sandbox, command))
        await asyncio.sleep(0)
        call.cancel()
        [ended] = await asyncio.gather(call, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError) or command == "true"
        # An interrupt that came too late may still show as a line end.
        assert (await output(sandbox, "echo $((6 * 7))")).strip() in ("42", "mine\n42")


async def test_concurrent_calls_wait_for_each_other(sandbox: RemoteSandbox) -> None:
    await bash(sandbox, "n=0")
    commands = [f"n=$((n + 1)); sleep {random.choice([0, 0, 0, 0.3])}" for _ in range(20)]
    await asyncio.gather(*(bash(sandbox, command) for command in commands))
    assert await output(sandbox, "echo $n") == "20"


async def test_stop_ends_a_running_short_command(
    sandbox: RemoteSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_shell, "SHORT_S", 20)
    await bash(sandbox, "true")
    call = asyncio.create_task(bash(sandbox, "sleep 1000"))
    await asyncio.sleep(0)
    await sandbox.stop()
    with pytest.raises(Exception, match="stopped"):
        await call
