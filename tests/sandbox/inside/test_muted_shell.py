"""A shell whose own output was redirected is shown again, and a line tells the model so."""

import pytest

from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.sandboxes import bash, output

pytestmark = [pytest.mark.processes, pytest.mark.unprivileged]

NOTE = "[the command redirected the shell's own output with `exec`; it is shown again from now on]"

MUTED = [
    "exec >file",
    "exec >&-",
    "exec >/dev/null 2>&1",
    "exec >&- 2>&- <&-",
    "exec > >(cat >file)",
    "exec >file 2>&1; echo written; ls /no/such",
    "f() { exec >file; }; f",
    "echo exec '>file' >script; . ./script",
    "exec >file; sleep 0.4",
    "set -x; exec >file 2>&1",
    "IFS=01m; exec >file",
]


@pytest.mark.parametrize("command", MUTED)
async def test_a_muted_shell_is_heard_again(sandbox: RemoteSandbox, command: str) -> None:
    await bash(sandbox, "KEPT=kept")
    result = await bash(sandbox, command)
    assert NOTE in result.output
    assert not result.data["restarted"]
    after = await bash(sandbox, "echo out $KEPT; echo error >&2")
    assert "out kept\n" in after.output
    assert "error\n" in after.output
    assert NOTE not in after.output


async def test_a_function_defined_earlier_may_mute_the_shell(sandbox: RemoteSandbox) -> None:
    await bash(sandbox, "quiet() { exec >file; }")
    assert (await bash(sandbox, "quiet")).output == NOTE


async def test_output_that_was_redirected_to_a_file_stays_there(sandbox: RemoteSandbox) -> None:
    result = await bash(sandbox, "exec >file; echo written; (exit 3)")
    assert result.output == f"[exit code 3]\n{NOTE}"
    assert result.data["exit_code"] == 3
    assert await output(sandbox, "cat file") == "written"


async def test_a_muted_command_that_times_out_reports_both(sandbox: RemoteSandbox) -> None:
    result = await bash(sandbox, "exec >file; sleep 100", timeout_s=1)
    assert result.output.strip() == f"[timed out after 1 s]\n{NOTE}"
    assert await output(sandbox, "echo heard") == "heard"


@pytest.mark.parametrize(
    "command",
    ["(exec >file; echo x)", "exec 3>file", "exec 2>file", "exec 3>&1 >&3", "{ echo x; } >file"],
)
async def test_other_redirections_stay(sandbox: RemoteSandbox, command: str) -> None:
    assert (await bash(sandbox, command)).output == ""
    assert await output(sandbox, "echo heard") == "heard"


async def test_redirected_errors_alone_stay_redirected(sandbox: RemoteSandbox) -> None:
    await bash(sandbox, "exec 2>file")
    assert (await bash(sandbox, "echo error >&2; echo heard")).output == "heard\n"
    assert await output(sandbox, "cat file") == "error"
