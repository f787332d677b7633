"""A rollout that the model ends by a call: the chain ends exactly with that reply."""

import json
from collections.abc import Mapping
from typing import Any

from prorl_service.agents.base import RolloutContext
from prorl_service.agents.loop import run_turns
from prorl_service.sandbox.base import ToolResult
from prorl_service.schemas import FinishReason, Limits
from prorl_service.testing import FakeSandboxes, ScriptedGenerator
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tools.base import Toolset
from prorl_service.tools.bash import Bash
from prorl_service.tools.submit import Submit
from tests.agents.attempts import attempt_of


def call(name: str, arguments: dict[str, str]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def test_submit_ends_the_chain_with_its_own_turn(chat: ChatFormat) -> None:
    ran = []

    def answer(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        ran.append(arguments["command"])
        return ToolResult("ran")

    replies = [
        call("bash", {"command": "first"}) + call("submit", {"wrong": "argument"}),
        call("submit", {"message": "42"}) + call("bash", {"command": "never"}),
    ]
    generator = ScriptedGenerator.of_texts(replies, chat)
    context = RolloutContext(
        attempt_of(chat, generator, FakeSandboxes(answer), limits=Limits(max_turns=9))
    )
    tools = Toolset([Bash(), Submit()], await context.open_sandbox(), timeout_s=1)
    assert await run_turns(context, tools) is FinishReason.FINISHED
    assert ran == ["first"]
    first, last = context.turns
    assert [record.is_error for record in first.tool_calls] == [False, True]
    assert [(record.name, record.arguments) for record in last.tool_calls] == [
        ("submit", {"message": "42"})
    ]
    (segment,) = context.attempt.sampled.trajectory(FinishReason.FINISHED).segments
    sampled = [generation.token_ids for generation in generator.generations]
    assert segment.response_ids[first.start : first.stop] == sampled[0]
    assert segment.response_ids[last.start :] == sampled[1]
    assert sum(segment.loss_mask) == sum(map(len, sampled))
