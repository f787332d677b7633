"""The demo's tasks for an agent that somebody else wrote, in place of our loop.

Each program is started with its own options alone. They keep its prompt short, so that a tiny model
can learn from it. `Form` is how the program words a task and a result: one real rollout shows it,
so that demonstrations hold the very tokens of rollouts. Nothing here trains.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from prorl_service.agents.base import Prompt
from prorl_service.agents.harness import turns
from prorl_service.agents.registry import AgentRegistry
from prorl_service.client.harness import with_harness, with_program
from prorl_service.gateway.calls import CallReply, CallRequest
from prorl_service.gateway.harnesses import preset
from prorl_service.gateway.rollout import RolloutGateway
from prorl_service.schemas import Message, Task
from prorl_service.testing import play
from recipes.common.training.imitation import Transcript, tool_call
from recipes.demo.demonstrations import Demonstration
from recipes.demo.tasks import Attempt, Instance

SYSTEM_PROMPT = "Solve the task with one bash command, then answer with its result in \\boxed{}."
OPENAI_AGENT = Path(__file__).with_name("openai_agent.py")
MINI_CONFIG = """\
agent:
  system_template: You have a shell.
  instance_template: "{{task}}"
model:
  observation_template: "{{output.output}}"
  format_error_template: Call bash.
"""
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@dataclass(frozen=True, slots=True)
class Program:
    wrap: Callable[[Task], Task]
    answer: Callable[[str], str]
    """Writes the reply with which a policy ends its work, from the answer."""

    def task(self, instance: Instance) -> Task:
        plain = instance.task()
        system = Message(role="system", content=SYSTEM_PROMPT)
        changed = {
            "messages": [system, plain.messages[-1]],
            "data": plain.data | {"answer_format": "boxed"},
        }
        return self.wrap(plain.model_copy(update=changed))


def _pi(task: Task) -> Task:
    *options, prompt = preset.load("pi").command
    options += ["--system-prompt", "You have a shell.", "--tools", "bash", "--thinking", "off"]
    settings = {"${home}/.pi/agent/settings.json": '{"compaction": {"enabled": false}}'}
    return with_harness(task, "pi", command=[*options, prompt], files=settings)


def _mini_swe_agent(task: Task) -> Task:
    command = [*preset.load("mini_swe_agent").command, "-c", "${home}/demo.yaml"]
    files = {"${home}/demo.yaml": MINI_CONFIG}
    return with_harness(task, "mini_swe_agent", command=command, files=files)


def _openai(task: Task) -> Task:
    return with_program(task, OPENAI_AGENT.read_text())


def _boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def _submitted(answer: str) -> str:
    return tool_call("bash", {"command": f"{SUBMIT}; echo '{_boxed(answer)}'"})


PROGRAMS: Mapping[str, Program] = {
    "pi": Program(_pi, _boxed),
    "mini_swe_agent": Program(_mini_swe_agent, _submitted),
    "openai": Program(_openai, _boxed),
}


def task_for(program: str | None) -> Callable[[Instance], Task]:
    """Returns what makes a task of an instance: for a program, or for the service's own loop."""
    return Instance.task if program is None else PROGRAMS[program].task


# --- how a program words tasks and results --------------------------------------------------------

OUTPUT = "4815162342"
SHOWN = Instance(
    name="shown",
    question="Which number is in file f10?",
    right=Attempt("cat f10", OUTPUT),
    wrong=(),
    files={"f10": f"{OUTPUT}\n"},
)


@dataclass(frozen=True, slots=True)
class Form:
    """A program's first prompt for `SHOWN`, and the message with which it gives `OUTPUT` back."""

    prompt: Prompt
    result: str
    answer: Callable[[str], str]

    def transcript(self, demonstration: Demonstration) -> Transcript:
        question, attempt = demonstration.instance.question, demonstration.attempt
        messages = [
            one.model_copy(update={"content": one.content.replace(SHOWN.question, question)})
            for one in self.prompt.messages
        ]
        return Transcript(
            prompt=Prompt(messages, self.prompt.tools),
            replies=(tool_call("bash", {"command": attempt.command}), self.answer(attempt.output)),
            answers=(self.result.replace(OUTPUT, attempt.output),),
        )


def form_of(name: str) -> Form:
    """Runs the program once, with scripted replies. Raises `RuntimeError` if that does not work."""
    program = PROGRAMS[name]
    replies = [tool_call("bash", {"command": SHOWN.right.command}), program.answer(OUTPUT)]
    asked: list[CallRequest] = []

    class WatchedGateway(RolloutGateway):
        async def answer(self, request: CallRequest, *args: Any, **options: Any) -> CallReply:
            asked.append(request)
            return await super().answer(request, *args, **options)

    with patch.object(turns, "RolloutGateway", WatchedGateway):
        played = asyncio.run(play(AgentRegistry()["harness"], program.task(SHOWN), replies))
    if played.rollout.reward != 1.0 or len(asked) != len(replies):
        raise RuntimeError(f"{name} did not solve the demo's task: {played.rollout.error}")
    first, second = asked
    messages: Sequence[Message] = [said.message for said in first.conversation]
    return Form(
        Prompt(messages, first.tools), second.conversation[-1].message.content, program.answer
    )
