"""Replies of a scripted model for each harness, in its own tools, and checks of the trajectory."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import JsonValue

from prorl_service.agents.registry import AgentRegistry
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import Limits, Message, Task
from prorl_service.testing import Played, play
from tests.gateway.rollouts import thinking, tool_call
from tests.sandbox.sandboxes import image_of

ANSWER = "\\boxed{42}"
SUBMIT = f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo '{ANSWER}'"


@dataclass(frozen=True, slots=True)
class Shell:
    """A harness' tool for commands."""

    tool: str
    command: str = "command"
    others: dict[str, JsonValue] = field(default_factory=dict)
    """Further arguments that the tool requires."""

    def call(self, command: str) -> str:
        arguments = {self.command: command, **self.others}
        return tool_call(self.tool, **arguments)


BASH = Shell("bash")
CLAUDE = Shell("Bash", others={"description": "Runs it"})
SHELLS = {
    "pi": BASH,
    "pi_responses": BASH,
    "pi_messages": BASH,
    "claude_code": CLAUDE,
    "claude_code_bare": CLAUDE,
    "codex": Shell("exec_command", "cmd"),
    "mini_swe_agent": BASH,
    "opencode": Shell("bash", others={"description": "Runs it"}),
    "qwen_code": Shell("run_shell_command", others={"is_background": False}),
    "openhands": Shell("terminal"),
}


def work(harness: str) -> list[str]:
    """Writes a file, calls two tools at once of which the first ends last, prints 30,000 lines,
    reads the file, answers."""
    if harness == "mini_swe_agent_text":
        make, read = "echo hello > a.txt", "cat a.txt; echo second"
        return [_block(command) for command in (make, read, "seq 30000", "cat a.txt", SUBMIT)]
    call = SHELLS[harness].call
    end = call(SUBMIT) if harness == "mini_swe_agent" else f"It is {ANSWER}."
    return [
        thinking("A file first.", f"  I make a file.  {call('echo hello > a.txt')}"),
        f"Both.\n{call('sleep 0.3; cat a.txt')}\n{call('echo second')}",
        call("seq 30000"),
        thinking("Once more.", call("cat a.txt")),
        end,
    ]


def bad_calls(harness: str) -> list[str]:
    """Calls with broken JSON, calls a tool that there is not, answers. The calls are the policy's
    fault, and reach the harness as they are."""
    shell = SHELLS[harness]
    end = shell.call(SUBMIT) if harness == "mini_swe_agent" else f"It is {ANSWER}."
    broken = '<tool_call>\n{"name": "%s", "arguments": {"%s": "echo }\n</tool_call>'
    unknown = Shell("no_such_tool").call("echo")
    return [broken % (shell.tool, shell.command), unknown, shell.call("echo hello"), end]


def _block(command: str) -> str:
    return thinking("Next.", f"THOUGHT: next\n\n```mswea_bash_command\n{command}\n```")


async def played(
    harness: str | None,
    replies: list[str],
    sandboxes: SandboxProvider,
    *,
    limits: Limits | None = None,
    **data: JsonValue,
) -> Played:
    math = math_task(sandboxes)
    fields = {"harness": harness, "agent": math.agent, "data": math.data, **data}
    task = math.model_copy(update={"agent": "harness", "data": fields})
    agent = AgentRegistry()["harness"]
    return await play(agent, task, replies, sandboxes=sandboxes, limits=limits)


def math_task(sandboxes: SandboxProvider) -> Task:
    return Task(
        task_id="t",
        agent="math",
        messages=[Message(role="user", content="What is 6 * 7?")],
        data={"answer": "42"},
        image=image_of(sandboxes.kind),
    )


def assert_exact(run: Played) -> None:
    """The engine saw the trajectory's very chains, and the mask is 1 on what it sampled alone."""
    trajectory = run.rollout.trajectory
    assert trajectory is not None
    sampled = [[0] * len(segment.response_ids) for segment in trajectory.segments]
    seen = sorted(run.prompt_ids)
    chains = []
    for turn in trajectory.turns:
        segment = trajectory.segments[turn.segment]
        chains.append([*segment.prompt_ids, *segment.response_ids[: turn.start]])
        sampled[turn.segment][turn.start : turn.stop] = [1] * (turn.stop - turn.start)
    assert sorted(chains) == seen
    assert [[*segment.loss_mask] for segment in trajectory.segments] == sampled


def report(run: Played) -> dict[str, JsonValue]:
    found = run.rollout.report
    assert found is not None
    harness = found["harness"]
    assert isinstance(harness, dict)
    return harness


def figure(run: Played, name: str) -> float:
    return run.rollout.reward_components[f"harness_{name}"]


def reasoning_only(harness: str) -> list[str]:
    """Thinks and says nothing, twice; then answers. Some end at once, some ask again."""
    call = SHELLS[harness].call("echo hello")
    return [call, thinking("Hm."), thinking("Hm."), f"It is {ANSWER}.", *[thinking("Hm.")] * 3]


def sub_agent(harness: str) -> list[str]:
    """Gives a part of the work to a sub-agent, then works on."""
    what = {"description": "Part", "prompt": "Say hello.", "subagent_type": "general-purpose"}
    part = tool_call("Agent", **what)
    call = SHELLS[harness].call
    return [part, call("echo from the sub-agent"), "Hello.", call("echo mine"), f"It is {ANSWER}."]


def long_work(harness: str) -> list[str]:
    """Calls a tool twelve times, then answers."""
    calls = [SHELLS[harness].call(f"echo line {number}; seq 200") for number in range(12)]
    return [*calls, f"It is {ANSWER}."]


DIALECT_OF_EACH = ("pi", "pi_responses", "pi_messages", "claude_code", "claude_code_bare", "codex")
WITH_TOOLS = (*DIALECT_OF_EACH, "mini_swe_agent", "opencode", "qwen_code")
SCENARIOS: dict[str, tuple[tuple[str, ...], Callable[[str], list[str]]]] = {
    "work": ((*WITH_TOOLS, "mini_swe_agent_text"), work),
    "bad_calls": (WITH_TOOLS, bad_calls),
    "reasoning_only": (("pi", "claude_code_bare", "codex", "qwen_code"), reasoning_only),
    "sub_agent": (("claude_code",), sub_agent),
    "long_work": (("claude_code", "codex", "pi"), long_work),
}
"""Recorded scenarios: harnesses and their scripts."""
