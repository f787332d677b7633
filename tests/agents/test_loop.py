import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl_service.agents.base import RolloutContext
from prorl_service.agents.loop import run_turns
from prorl_service.sandbox.base import ToolResult
from prorl_service.schemas import FinishReason, Limits, Trajectory
from prorl_service.testing import FakeSandboxes, ScriptedGenerator
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.formats import ToolCall
from prorl_service.tokens.probe import ends_in_reasoning, user
from prorl_service.tools.base import Toolset
from prorl_service.tools.bash import Bash
from prorl_service.tools.submit import Submit
from tests.agents.attempts import attempt_of
from tests.tokens.families import FAMILIES, Family, chat_of, written

MODEL_VOCABULARY = 384
"""Number of ids a tiny model may sample; its tokenizer knows fewer."""


def echo(name: str, arguments: Mapping[str, Any]) -> ToolResult:
    return ToolResult(f"ran {arguments['command']}")


async def rollout(
    chat: ChatFormat, generator: ScriptedGenerator, *, room: int = 4096, **limits: Any
) -> tuple[FinishReason, Trajectory]:
    """Plays an agent with the tools bash and submit."""
    attempt = attempt_of(
        chat, generator, FakeSandboxes(echo), max_model_len=room, limits=Limits(**limits)
    )
    context = RolloutContext(attempt)
    tools = Toolset([Bash(), Submit()], await context.open_sandbox(), timeout_s=1)
    reason = await run_turns(context, tools)
    return reason, attempt.sampled.trajectory(reason)


def assert_token_exact(trajectory: Trajectory, generator: ScriptedGenerator) -> None:
    calls = zip(trajectory.turns, generator.prompts, generator.generations, strict=True)
    for turn, prompt, generation in calls:
        segment = trajectory.segments[turn.segment]
        assert segment.prompt_ids + segment.response_ids[: turn.start] == prompt
        assert segment.response_ids[turn.start : turn.stop] == generation.token_ids
        assert segment.policy_versions[turn.start : turn.stop] == generation.policy_versions
    sampled = sum(len(generation.token_ids) for generation in generator.generations)
    assert sum(sum(segment.loss_mask) for segment in trajectory.segments) == sampled


def call(command: str) -> str:
    body = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"<tool_call>\n{body}\n</tool_call>"


async def test_parallel_calls_are_answered_in_one_user_turn(chat: ChatFormat) -> None:
    generator = ScriptedGenerator.of_texts([call("a") + call("b"), "Done."], chat)
    _, trajectory = await rollout(chat, generator)
    appended = chat.decode(generator.prompts[1]).rpartition("<|im_start|>user")[2]
    assert appended.index("ran a") < appended.index("ran b")
    assert_token_exact(trajectory, generator)


async def test_submit_ends_the_chain_with_its_own_turn(chat: ChatFormat) -> None:
    wrong = '<tool_call>{"name": "submit", "arguments": {"wrong": "argument"}}</tool_call>'
    right = '<tool_call>{"name": "submit", "arguments": {"message": "42"}}</tool_call>'
    generator = ScriptedGenerator.of_texts([call("first") + wrong, right + call("never")], chat)
    reason, trajectory = await rollout(chat, generator)
    assert reason is FinishReason.FINISHED
    first, last = trajectory.turns
    assert [record.is_error for record in first.tool_calls] == [False, True]
    assert [(record.name, record.arguments) for record in last.tool_calls] == [
        ("submit", {"message": "42"})
    ]
    assert trajectory.segments[0].response_ids[last.start :] == generator.generations[1].token_ids
    assert_token_exact(trajectory, generator)


async def test_wrong_tools_and_arguments_are_answered_not_raised(chat: ChatFormat) -> None:
    unknown = '<tool_call>{"name": "fly", "arguments": {}}</tool_call>'
    wrong = '<tool_call>{"name": "bash", "arguments": {"cmd": "ls"}}</tool_call>'
    generator = ScriptedGenerator.of_texts([unknown, wrong, "I give up."], chat)
    _, trajectory = await rollout(chat, generator)
    first, second = (turn.tool_calls[0] for turn in trajectory.turns[:2])
    assert first.is_error
    assert "no tool 'fly'" in first.output
    assert second.is_error
    assert "command" in second.output


async def test_a_turn_stopped_by_length_is_closed_with_masked_ids(chat: ChatFormat) -> None:
    cut = chat.encode("I was about to say")
    answer = [*chat.encode("42"), chat.end_of_turn_id]
    generator = ScriptedGenerator([cut, answer], end_of_turn_id=chat.end_of_turn_id)
    _, trajectory = await rollout(chat, generator)
    (segment,) = trajectory.segments
    assert segment.response_ids[: len(cut) + 1] == [*cut, chat.end_of_turn_id]
    assert segment.loss_mask[: len(cut) + 1] == [1] * len(cut) + [0]
    assert_token_exact(trajectory, generator)


async def test_turn_and_token_budgets_end_a_rollout(chat: ChatFormat) -> None:
    generator = ScriptedGenerator.of_texts([call("ls")] * 5, chat)
    reason, trajectory = await rollout(chat, generator, max_turns=3)
    assert (reason, len(trajectory.turns)) == (FinishReason.MAX_TURNS, 3)

    long = [7] * 100
    generator = ScriptedGenerator([long], end_of_turn_id=chat.end_of_turn_id)
    reason, trajectory = await rollout(chat, generator, max_response_tokens=10)
    assert reason is FinishReason.LENGTH
    assert trajectory.segments[0].response_ids == long[:10]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.integers(0, MODEL_VOCABULARY - 1), min_size=1, max_size=30),
        min_size=6,
        max_size=6,
    )
)
async def test_ids_that_do_not_survive_reencoding_stay_exact(
    chat: ChatFormat, answers: list[Sequence[int]]
) -> None:
    generator = ScriptedGenerator(answers, end_of_turn_id=chat.end_of_turn_id)
    _, trajectory = await rollout(chat, generator, max_turns=6)
    assert_token_exact(trajectory, generator)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
async def test_an_agent_works_with_models_of_each_family(family: Family) -> None:
    """Plays a call, a malformed call and an answer; the trajectory is exactly what was sampled."""
    chat = chat_of(family)
    call = written(family, [ToolCall("bash", {"command": "ls"})])[0]
    answer = "It is 42."
    if family.format == "harmony":
        answer = f"<|channel|>final<|message|>{answer}"
    texts = [call, call.rstrip()[:-1], answer]
    if ends_in_reasoning(chat._template.render([user()])):
        texts = [text if "</think>" in text else f"</think>{text}" for text in texts]
    generator = ScriptedGenerator.of_texts(texts, chat)
    reason, trajectory = await rollout(chat, generator, room=16_384)
    assert reason is FinishReason.FINISHED
    first, second, _ = trajectory.turns
    assert [record.output for record in first.tool_calls] == ["ran ls"]
    assert "ran ls" in chat.decode(generator.prompts[1])
    assert second.format_error is not None
    assert "Format error" in chat.decode(generator.prompts[2])
    assert len(trajectory.segments) == 1
    assert_token_exact(trajectory, generator)
