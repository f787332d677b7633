"""Everything that is known to confuse persistent shells, each followed by proof that ours works."""

import asyncio
from typing import NamedTuple

import psutil
import pytest

from prorl_service.sandbox.host.sandbox import RemoteSandbox
from tests.sandbox.sandboxes import Kind, bash, output, running

pytestmark = [pytest.mark.processes, pytest.mark.unprivileged]


class Trap(NamedTuple):
    command: str
    exit_code: int
    output: str
    """Text that the output must contain."""


SURVIVED = [
    Trap("echo one; (exit 42)", 42, "one\n[exit code 42]"),
    Trap('echo "unclosed', 2, "unexpected EOF"),
    Trap("echo 'unclosed", 2, "unexpected EOF"),
    Trap("echo `unclosed", 2, "unexpected EOF"),
    Trap("echo $(unclosed", 1, "unexpected EOF"),
    Trap("cat <<END\nunclosed", 0, "unclosed"),
    Trap("if then", 2, "syntax error"),
    Trap("f() {", 2, "syntax error"),
    Trap(")", 2, "syntax error"),
    Trap("echo backslash \\", 0, "backslash"),
    Trap("# only a comment", 0, ""),
    Trap("", 0, ""),
    Trap("\n\n  \n", 0, ""),
    Trap("no_such_program", 127, "command not found"),
    Trap("exec no_such_program", 127, "not found"),
    Trap("kill -9 $BASHPID &\nwait $!", 137, ""),
    Trap("(kill -TERM $BASHPID)", 143, ""),
    Trap("set -u; echo $NO_SUCH; echo after", 1, "unbound variable"),
    Trap("set -x; echo traced", 0, "+ echo traced\ntraced\n"),
    Trap("set -v; echo verbose", 0, "verbose\n"),
    Trap("set -n", 0, ""),
    Trap("set -e", 0, ""),
    Trap("set -o posix -C -f", 0, ""),
    Trap("set -- a b; shopt -s extglob nullglob; IFS=01", 0, ""),
    Trap(": ${NO_SUCH:?is needed}", 1, "is needed"),
    Trap("cat; wc -c; read line; echo read $?", 0, "0\nread 1\n"),
    Trap("exec </etc/passwd; read -r line; echo ${line%%:*}", 0, "root"),
    Trap("python3", 0, ""),
    Trap("read -p 'Continue? [y/N] ' answer; echo \"answer: $answer\"", 0, "answer: \n"),
    Trap("python3 -c 'input(\"name? \")'", 1, "EOFError"),
    Trap("rm -i $(mktemp) 2>&1 | cat", 0, "remove"),
    Trap("select x in a b; do :; done", 1, "1) a"),
    Trap("sh -c 'read x; exit $?'", 1, ""),
    Trap("printf 'no final newline'", 0, "no final newline"),
    Trap(r"printf '\036mark 0\036'", 0, "\x1emark 0\x1e"),
    Trap(r"printf '\036'; sleep 0.05; printf '\036%024d 0\036' 0", 0, f"\x1e\x1e{0:024d} 0\x1e"),
    Trap(r"printf 'nul\0binary\xff\xfe end'", 0, "nul\0binary\ufffd\ufffd end"),
    Trap(r"printf 'dos\r\nunix\n'", 0, "dos\nunix\n"),
    Trap(r"printf '\033[31mred\033[0m'", 0, "\x1b[31mred\x1b[0m"),
    Trap("echo grüße 你好 🎉", 0, "grüße 你好 🎉\n"),
    Trap("echo grüße | grep -o 'gr..e'", 0, "grüße\n"),
    Trap("echo 'it'\\''s' \"$HOME\" '!' !! \\$x", 0, "it's"),
    Trap("stty raw -isig -echo </dev/tty; echo set", 0, "set"),
    Trap("stty sane </dev/tty; echo a; echo b", 0, "a\nb\n"),
    Trap("printf() { :; }; echo() { :; }; eval() { :; }; set() { :; }; read() { :; }", 0, ""),
    Trap("alias builtin=false eval=false printf=false", 0, ""),
    Trap("PROMPT_COMMAND='echo prompted'; PS1='(venv) '; PS2='more '", 0, ""),
    Trap("trap 'echo debugged' DEBUG; trap 'echo erred' ERR", 0, ""),
    Trap("trap 'echo interrupted' INT; trap '' TERM HUP", 0, ""),
    Trap("mkdir gone; cd gone; rmdir ../gone; pwd", 0, "gone"),
    Trap("sleep 100 & kill -STOP $!; wait -n 2>/dev/null; jobs | grep -c Stopped", 0, "1\n"),
    Trap("setsid sleep 1 >/dev/tty 2>&1 & echo holds the terminal", 0, "holds the terminal"),
    Trap("yes | head -1; echo ${PIPESTATUS[0]}", 0, "y\n141\n"),
    Trap("BASH_ENV=x; unset PATH; hash -r; PATH=/usr/bin:/bin", 0, ""),
    Trap("enable -n echo set; exec 3>&1 4<&0", 0, ""),
    Trap("echo $(( 1 / 0 )); echo after", 1, "division by 0"),
    Trap("echo {1..3}; [[ a == b ]]", 1, "1 2 3\n[exit code 1]"),
    Trap(f"echo {'x' * 200_000} | wc -c", 0, "200001\n"),
]


EVERYWHERE = (
    *("echo 'unclosed", "(kill -TERM", "exec </etc/passwd", "echo grüße 你好"),
    "stty raw",
)


async def survives(sandbox: RemoteSandbox, trap: Trap) -> None:
    await bash(sandbox, "KEPT=kept; f() { builtin printf 'f %s\\n' $KEPT; }")
    result = await bash(sandbox, trap.command)
    assert result.data == {
        "exit_code": trap.exit_code,
        "timed_out": False,
        "truncated": False,
        "restarted": False,
    }
    assert result.is_error == (trap.exit_code != 0)
    assert trap.output in result.output
    # The trap's settings may add to the output or redirect it.
    after = await bash(sandbox, "exec >/dev/tty 2>&1; IFS=' '; f; (exit 7)")
    assert after.data["exit_code"] == 7
    assert "f kept" in after.output
    assert not after.data["restarted"]


@pytest.mark.parametrize("trap", SURVIVED, ids=lambda trap: trap.command[:30])
async def test_the_shell_and_its_state_survive(sandbox: RemoteSandbox, trap: Trap) -> None:
    await survives(sandbox, trap)


async def test_every_kind_has_the_same_shell(in_any_kind: RemoteSandbox) -> None:
    """The traps are of quoting, signals, the terminal, locales and memory."""
    for trap in SURVIVED:
        if trap.command.startswith(EVERYWHERE):
            await survives(in_any_kind, trap)
    for trap in ENDED[:1]:
        await is_replaced(in_any_kind, trap)


ENDED = [
    Trap("echo bye; exit 3", 3, "bye\nexit\n[exit code 3]\n[the shell exited and was restarted]"),
    Trap("exit", 0, "exit\n[the shell exited and was restarted]"),
    Trap("exec echo replaced", 0, "replaced\n[the shell exited and was restarted]"),
    Trap("kill -9 $$", 137, "[exit code 137]"),
    Trap("set -e; echo one; false; echo two", 1, "one\n[exit code 1]"),
    Trap("(sleep 100 >/dev/tty) & exit 4", 4, "[exit code 4]"),
    Trap("head -c 3000 /dev/zero | tr '\\0' x; exit 5", 5, "x" * 3000),
]


async def is_replaced(sandbox: RemoteSandbox, trap: Trap) -> None:
    directory = await output(sandbox, "pwd")
    await bash(sandbox, "LOST=lost; cd /")
    result = await bash(sandbox, trap.command)
    assert result.data == {
        "exit_code": trap.exit_code,
        "timed_out": False,
        "truncated": False,
        "restarted": True,
    }
    assert result.is_error
    assert trap.output in result.output
    assert await output(sandbox, "echo lost=$LOST $PWD") == f"lost= {directory}"


@pytest.mark.parametrize("trap", ENDED, ids=lambda trap: trap.command[:30])
async def test_a_shell_that_ends_is_replaced_and_the_result_says_so(
    sandbox: RemoteSandbox, trap: Trap
) -> None:
    await is_replaced(sandbox, trap)


IGNORES_SIGNALS = """python3 -c '
import signal, time
for number in signal.SIGINT, signal.SIGTERM: signal.signal(number, signal.SIG_IGN)
print("started", flush=True)
time.sleep(100)'"""

OVERRUN = [
    "sleep 100",
    "sleep 100; sleep 100; echo never",
    "for i in 1 2 3; do sleep 100; done",
    "while true; do :; done",
    "x=$(sleep 100)",
    "sleep 100 | sleep 100 | cat",
    "(sleep 100; sleep 100)",
    "bash -c 'sleep 100; sleep 100'",
    "read x </dev/tty",
    "cat /dev/tty",
    "read -s -p 'Password: ' x </dev/tty",
    "python3 -c 'import getpass; getpass.getpass()'",
    "cat <&1",
    "wait -n & wait; sleep 100 & wait",
    "yes",
    "trap '' INT; sleep 100",
    IGNORES_SIGNALS,
]


async def run_out_of_time(kind: Kind, command: str) -> None:
    async with running(kind) as sandbox:
        await bash(sandbox, "KEPT=kept")
        result = await bash(sandbox, f"echo begun\n{command}", timeout_s=2)
        assert result.is_error
        assert result.data["timed_out"]
        assert result.data["exit_code"] is None
        assert not result.data["restarted"], command
        assert result.output.startswith("begun\n")
        assert result.output.endswith("[timed out after 2 s]")
        assert "never" not in result.output
        assert await output(sandbox, "echo $KEPT") == "kept"


async def test_a_timeout_ends_the_command_and_keeps_the_shell(kind: Kind) -> None:
    await asyncio.gather(*(run_out_of_time(kind, command) for command in OVERRUN))


OVERRUN_AND_LOST = [
    "trap '' INT TERM; while true; do :; done",
    "kill -STOP $$",
    "builtin() { :; }",
    "enable -n printf",
    "x=$(trap '' INT TERM; sleep 100)",
    "shopt -s extdebug; trap false DEBUG",
    "exec bash -c 'trap \"\" INT TERM; while true; do :; done'",
]


async def run_out_of_time_and_lose_the_shell(kind: Kind, command: str) -> None:
    async with running(kind) as sandbox:
        result = await bash(sandbox, command, timeout_s=2)
        assert result.data["timed_out"], command
        assert result.data["restarted"], command
        assert result.output.endswith("[timed out after 2 s]\n[the shell exited and was restarted]")
        assert await output(sandbox, "echo alive") == "alive"


async def test_a_shell_that_does_not_recover_is_replaced(kind: Kind) -> None:
    await asyncio.gather(
        *(run_out_of_time_and_lose_the_shell(kind, command) for command in OVERRUN_AND_LOST)
    )


async def test_state_persists_between_commands(sandbox: RemoteSandbox) -> None:
    await bash(
        sandbox, "cd /usr; export A=1; B=2; f() { echo f$1; }; alias g='echo g'; set -o noglob"
    )
    assert await output(sandbox, "pwd; echo $A$B; f 3; g; echo /*; env | grep ^A=") == (
        "/usr\n12\nf3\ng\n/*\nA=1"
    )


async def test_errexit_lasts_for_one_command(sandbox: RemoteSandbox) -> None:
    await bash(sandbox, "set -e")
    result = await bash(sandbox, "false; echo went on")
    assert result.output == "went on\n"


async def test_background_jobs_continue_and_report_with_the_next_result(
    sandbox: RemoteSandbox,
) -> None:
    await bash(sandbox, "mkfifo go done; (read x <go; echo from the background; echo >done) &")
    assert "from the background" in await output(sandbox, "echo >go; read x <done; jobs")


async def test_a_background_job_never_blocks_on_unread_output(
    sandbox: RemoteSandbox,
) -> None:
    await bash(sandbox, "mkfifo done; (head -c 1000000 /dev/zero | tr '\\0' x; echo >done) &")
    result = await bash(sandbox, "read x <done; echo finished")
    assert result.data["exit_code"] == 0
    assert result.data["truncated"]
    assert "finished\n" in result.output


async def test_huge_output_is_cut_while_it_is_read(sandbox: RemoteSandbox) -> None:
    result = await bash(
        sandbox, "echo first; head -c 30000000 /dev/zero | tr '\\0' x; echo; echo last"
    )
    assert result.data["truncated"]
    assert not result.is_error
    assert result.output.startswith("first\nxxx")
    assert result.output.endswith("xxx\nlast\n")
    total = len("first\n") + 30_000_000 + len("\nlast\n")
    assert f"\n[... {total - 4096} bytes omitted ...]\n" in result.output
    assert not (await bash(sandbox, "echo short")).data["truncated"]


async def test_commands_of_a_sandbox_wait_only_for_each_other(
    sandbox: RemoteSandbox,
) -> None:
    first = asyncio.create_task(bash(sandbox, "read x </dev/tty; echo first", timeout_s=1))
    second = asyncio.create_task(bash(sandbox, "echo second"))
    await sandbox.upload("meanwhile", b"")
    assert not first.done()
    assert (await second).output == "second\n"
    assert first.done()


async def test_waiting_for_the_shell_counts_against_the_timeout(sandbox: RemoteSandbox) -> None:
    first = asyncio.create_task(bash(sandbox, "sleep 100", timeout_s=1))
    await sandbox.upload("first is on its way", b"")
    second = await bash(sandbox, "touch ran", timeout_s=0.2)
    assert second.data["timed_out"]
    assert not first.done()
    await first
    assert (await bash(sandbox, "ls ran")).is_error


@pytest.mark.parametrize("arguments", [{}, {"command": 5}, {"command": "echo \0"}])
async def test_a_malformed_call_is_the_models_error(
    sandbox: RemoteSandbox, arguments: dict[str, object]
) -> None:
    result = await sandbox.call_tool("bash", arguments, timeout_s=5)
    assert result.is_error
    assert "command" in result.output


async def test_an_unknown_tool_is_the_models_error(sandbox: RemoteSandbox) -> None:
    result = await sandbox.call_tool("teleport", {}, timeout_s=5)
    assert result.is_error
    assert result.output.startswith("there is no tool 'teleport' here, only: bash")


async def test_no_history_is_written(sandbox: RemoteSandbox) -> None:
    await bash(sandbox, "echo remembered; exit")
    assert await output(sandbox, "ls -A") == ""


async def test_lone_surrogates_do_no_harm(sandbox: RemoteSandbox) -> None:
    assert await output(sandbox, "echo \ud800") == "?"


async def test_any_amount_of_output_takes_no_memory(isolated: RemoteSandbox) -> None:
    assert isolated.server_pid is not None
    server = psutil.Process(isolated.server_pid)
    await bash(isolated, "seq 100000")
    before = server.memory_info().rss
    result = await bash(isolated, "head -c 200M /dev/zero; echo end", timeout_s=60)
    assert result.output.endswith("end\n")
    omitted = (200 << 20) + len("end\n") - 4096
    assert f"[... {omitted} bytes omitted ...]" in result.output
    assert server.memory_info().rss - before < 4 << 20
