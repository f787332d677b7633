"""Duration of a shell command, by the way it is sent; ours on each rung of isolation."""

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from bench.frame import Found
from bench.tools import rungs, tmux
from bench.tools.apptainer import exec_each
from bench.tools.shells import Run, process_per_command, pty_on_event_loop
from bench.tools.timing import Action, compared, finished, p50, ratio
from tests.sandbox.images.debian import debian_image
from tests.sandbox.sandboxes import running

LINE = "7" * 99
HEREDOC = "".join(f"{n} a 'line' of \"text\" with $signs and \\ in it\n" for n in range(40))
HEREDOC_FILE = Path("/tmp/prorl-bench-heredoc")
COMMANDS = {
    "true": "true",
    "ls /": "ls /",
    "100 KB": f"yes {LINE} | head -c 100000",
    "1 MB": f"yes {LINE} | head -c 1000000",
    "heredoc": f"cat > {HEREDOC_FILE} <<'EOF'\n{HEREDOC}EOF",
}
SEVENS = {"100 KB": 99_000, "1 MB": 990_000}
POLLED, CONTROL = "tmux as OpenHands", "tmux control mode"
FLOOR = "bare pty on the event loop"


async def measure(quick: bool) -> Found:
    async with AsyncExitStack() as stack:
        stack.callback(HEREDOC_FILE.unlink, missing_ok=True)
        runs = _others(stack)
        for name, kind in rungs.RUNGS.items():
            sandbox = await stack.enter_async_context(running(kind, rungs.LIMITS))
            runs[name] = rungs.tool(sandbox, "bash", "command")
        actions: dict[tuple[str, str], Action] = {}
        for who, run in runs.items():
            for what, command in COMMANDS.items():
                _check(who, what, await finished(run(command)))
                actions[who, what] = partial(run, command)
        rows = await compared(actions, quick)
    true = {who: p50(rows, who, "true") for who in runs}
    ours = true[rungs.SIF]
    headline = {
        "bash_apptainer_p50_ms": ours,
        "bash_vs_tmux_ratio": ratio(true[POLLED], ours),
        "bash_vs_tmux_best_ratio": ratio(true[CONTROL], ours),
        "bash_vs_pty_floor_ratio": ratio(ours, true[FLOOR]),
    }
    return Found(rows, headline)


def _others(stack: AsyncExitStack) -> dict[str, Run]:
    """Returns the host's shells, and one that starts a container for each command."""
    return {
        POLLED: stack.enter_context(tmux.polled()),
        "apptainer exec each": exec_each(debian_image()),
        "bash -c each": process_per_command(["bash", "-c"]),
        CONTROL: stack.enter_context(tmux.control_mode()),
        FLOOR: stack.enter_context(pty_on_event_loop()),
    }


def _check(who: str, what: str, output: object) -> None:
    """Raises `RuntimeError` for lost output, lest a way that loses it looks fast."""
    text = output.decode() if isinstance(output, bytes) else str(output)
    complete = {"true": not text.strip(), "ls /": "usr" in text, "heredoc": not text.strip()}
    if not complete.get(what, text.count("7") == SEVENS.get(what)):
        raise RuntimeError(f"{who}: {what} gave {len(text)} characters: {text[:200]!r}")
