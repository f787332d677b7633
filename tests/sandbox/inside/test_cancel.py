"""Cancelled calls: they end inside the sandbox too, and the shell keeps its state."""

import asyncio
from contextlib import suppress

import pytest

from prorl_service.errors import SandboxError
from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.inside.test_execd_trees import assert_only_the_shell_runs
from tests.sandbox.inside.test_shell_traps import IGNORES_SIGNALS
from tests.sandbox.inside.test_streaming import Viewer
from tests.sandbox.sandboxes import Kind, bash, output, running

pytestmark = [pytest.mark.processes, pytest.mark.unprivileged]


async def begin(sandbox: RemoteSandbox, command: str) -> asyncio.Task[object]:
    """Returns the call once its command is running."""
    viewer = Viewer()
    arguments = {"command": f"echo begun\n{command}"}
    call: asyncio.Task[object] = asyncio.create_task(
        sandbox.call_tool("bash", arguments, timeout_s=1000, on_output=viewer)
    )
    await viewer.sees(b"begun")
    return call


async def cancelled(call: asyncio.Task[object]) -> None:
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    assert call.cancelled()


COMMANDS = [
    "sleep 1000",
    "while true; do :; done",
    "read x </dev/tty",
    "yes",
    "sudo() { read -p 'password: ' x </dev/tty; }; sudo",
    "sleep 1000 | cat",
    IGNORES_SIGNALS,
]


async def cancel(kind: Kind, command: str) -> None:
    async with running(kind) as sandbox:
        await bash(sandbox, "KEPT=kept; cd /usr")
        await cancelled(await begin(sandbox, command))
        # This call waits for the shell, hence for the end of the cancelled command.
        assert await output(sandbox, "echo $KEPT $PWD; jobs") == "kept /usr", command
        assert_only_the_shell_runs(sandbox)


async def test_a_cancelled_command_stops_and_the_shell_is_kept(kind: Kind) -> None:
    await asyncio.gather(*(cancel(kind, command) for command in COMMANDS))


async def test_a_shell_that_does_not_recover_is_replaced(sandbox: RemoteSandbox) -> None:
    await cancelled(await begin(sandbox, "trap '' INT TERM; while true; do :; done"))
    result = await bash(sandbox, "echo alive")
    assert "alive" in result.output


async def test_a_cancelled_call_in_the_queue_lets_later_calls_run(
    sandbox: RemoteSandbox,
) -> None:
    first = await begin(sandbox, "sleep 1000")
    second = asyncio.create_task(bash(sandbox, "touch ran", timeout_s=1000))
    third = asyncio.create_task(output(sandbox, "ls"))
    await sandbox.upload("sent", b"")
    second.cancel()
    await cancelled(first)
    assert await third == "sent"
    assert second.cancelled()


async def test_a_call_abandoned_by_the_channel_stops_too(sandbox: RemoteSandbox) -> None:
    assert sandbox._channel is not None
    with pytest.raises(SandboxError, match="did not answer"):
        await sandbox._channel.request(
            "tool",
            timeout_s=1000,
            margin_s=-999.5,
            name="bash",
            arguments={"command": "sleep 1000"},
        )
    assert await output(sandbox, "echo free") == "free"


async def test_many_cancels_leave_nothing_behind(sandbox: RemoteSandbox) -> None:
    for _ in range(5):
        calls = [asyncio.create_task(bash(sandbox, "sleep 1000", 1000)) for _ in range(10)]
        await sandbox.upload("on their way", b"")
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert await output(sandbox, "jobs; echo done") == "done"
