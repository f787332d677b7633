"""The multi-turn loop: sample, parse, call tools, append their results, sample again.

A reply without a tool call is the final answer, and so is a call of a tool that ends the rollout:
the chain ends with that reply, and its remaining calls are skipped. A reply that breaks the call
format is answered with the problem and stays in the chain, so that the policy can learn from it.
"""

from collections.abc import Sequence
from typing import Protocol

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext
from prorl_service.agents.services import Requirements
from prorl_service.sandbox.base import Sandbox
from prorl_service.schemas import FinishReason, Message, Picture, Task, ToolCallRecord, Turn
from prorl_service.tokens.formats import Problem, Reply
from prorl_service.tools.base import Toolset, function_schema
from prorl_service.tools.registry import packages_of, tools_named
from prorl_service.tools.submit import Submit

SUBMIT = " Call `submit` when you are done."


class Listener(Protocol):
    """Somebody to whom the policy talks: replies without a tool call do not end the rollout."""

    async def answer(self, rollout: RolloutContext, said: str) -> Message | FinishReason:
        """Returns the answer to what the policy said, or why there is none."""


class TurnTaker(Protocol):
    """What takes a rollout's turns in the place of the loop."""

    async def turns(self, rollout: RolloutContext, tools: Toolset, brief: str) -> FinishReason: ...


class LoopAgent(AgentHandler):
    """An agent whose RUN is `self.turns` and what it fetches from the sandbox after it."""

    taker: TurnTaker | None = None
    """Another program in the loop's place: the agent `harness` sets it."""

    async def turns(self, rollout: RolloutContext, tools: Toolset) -> FinishReason:
        if self.taker is not None:
            return await self.taker.turns(rollout, tools, self.brief())
        return await run_turns(rollout, tools)

    def brief(self) -> str:
        """Returns the task as text for a program with tools of its own."""
        return "\n\n".join(message.content for message in self.prompt().messages)


class ToolAgent(LoopAgent):
    """An agent whose tasks name the tools that the model calls in one sandbox, which INIT opens."""

    def __init__(self, task: Task, tools: Sequence[str]) -> None:
        """Raises `InvalidRequest` for a name that no tool has."""
        super().__init__(task)
        self.tools = tools_named(tools)
        self.uses = Requirements(packages=packages_of(self.tools))
        self._sandbox: Sandbox | None = None

    def how_to_end(self) -> str:
        """Returns the end of a system message: the request to call `submit`, if it is offered."""
        return SUBMIT if any(tool.name == Submit.name for tool in self.tools) else ""

    def with_tools(self, messages: Sequence[Message]) -> Prompt:
        """Returns a prompt that offers the tools."""
        return Prompt(messages, [function_schema(tool) for tool in self.tools])

    async def call_tools(self, rollout: RolloutContext) -> FinishReason:
        """Takes the rollout's turns with the tools in the sandbox and those of the servers that the
        task uses."""
        assert self._sandbox is not None
        tools = [*self.tools, *rollout.services.tools(self.uses)]
        timeout_s = rollout.limits.tool_timeout_s
        return await self.turns(rollout, Toolset(tools, self._sandbox, timeout_s=timeout_s))


async def run_turns(
    rollout: RolloutContext, tools: Toolset, listener: Listener | None = None
) -> FinishReason:
    """Raises `BackendError` and `SandboxError`; earlier turns stay in `rollout`.

    When RUN's budget is used up, the turn in progress is abandoned, with its tool calls.
    """
    try:
        async with rollout.attempt.turns_budget() as budget:
            return await _turns(rollout, tools, listener)
    except TimeoutError:
        if not budget.expired():
            raise
        return FinishReason.TIMEOUT


async def _turns(
    rollout: RolloutContext, tools: Toolset, listener: Listener | None
) -> FinishReason:
    attempt, prompt_ids = rollout.attempt, rollout.prompt_ids
    if not attempt.resumed_prompt:
        attempt.first_turn = len(rollout.turns)
    attempt.final_turn = None
    tools.note, attempt.resumed_note = attempt.resumed_note, ""
    tools.shows_pictures = attempt.chat.pictures is not None
    for _ in range(len(rollout.turns) - attempt.first_turn, rollout.limits.max_turns):
        if rollout.room(len(prompt_ids)) <= 0:
            return FinishReason.LENGTH
        turn = await rollout.sample(prompt_ids)
        reply = _read(turn, rollout, tools)
        if reply.problem is None and not reply.calls:
            answer = await _heard(reply, rollout, listener)
            if isinstance(answer, FinishReason):
                return answer
            answers = [answer]
        else:
            answers = await _answers(reply, turn, rollout, tools)
        if tools.ended_rollout:
            attempt.final_turn = len(rollout.turns) - 1
            return FinishReason.FINISHED
        prompt_ids = rollout.next_prompt(answers)
        await rollout.turn_ended(prompt_ids)
    return FinishReason.MAX_TURNS


def _read(turn: Turn, rollout: RolloutContext, tools: Toolset) -> Reply:
    if turn.finish_reason == "length":
        end = len(turn.text)
        cut = Problem("the reply was cut off at its length limit", end, end)
        reply = Reply(turn.text, problem=cut)
    else:
        reply = rollout.reply(turn, tools.schemas)
    turn.format_error = reply.problem.message if reply.problem else None
    return reply


async def _heard(
    reply: Reply, rollout: RolloutContext, listener: Listener | None
) -> Message | FinishReason:
    if listener is None:
        return FinishReason.FINISHED
    return await listener.answer(rollout, reply.content)


async def _answers(
    reply: Reply, turn: Turn, rollout: RolloutContext, tools: Toolset
) -> list[Message]:
    if reply.problem is not None:
        return [Message(role="tool", content=f"Format error: {reply.problem.message}.")]
    await rollout.calls_begin(
        len(reply.calls)
        if rollout.attempt.has_network
        else sum(map(tools.reaches_outside, reply.calls))
    )
    answers = []
    for call in reply.calls:
        with rollout.attempt.calling(call.name):
            record = await tools.call(call)
        rollout.attempt.note_call(turn, record)
        answers.append(_result(record, call.id))
        if tools.ended_rollout:
            break
    return answers


def _result(record: ToolCallRecord, call_id: str | None) -> Message:
    """Returns the result of a call as a message: its output, then its pictures."""
    end = len(record.output)
    pictures = [Picture(at=end, data=one) for one in record.pictures]
    return Message(
        role="tool",
        content=record.output,
        pictures=pictures,
        name=record.name,
        tool_call_id=call_id,
    )
