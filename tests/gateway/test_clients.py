"""The gateway as the official clients of OpenAI and Anthropic see it, streamed and not."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest

from prorl_service.schemas import FinishReason
from prorl_service.tokens.chat import ChatFormat
from tests.gateway.rollouts import Rollout, rollout, thinking, tool_call

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
ASKED = "Which files are there?"
REPLIES = (
    thinking("I had better look. é", f"Let me look.\n{tool_call(command='ls -a')}"),
    tool_call(command="pwd") + "\n" + tool_call(command="date"),
    "Two files: a and b.",
)
RESULTS = {"ls -a": "a\nb", "pwd": "/work", "date": "today"}


@pytest.fixture
async def run(chat: ChatFormat) -> AsyncIterator[Rollout]:
    async with rollout(chat, REPLIES) as running:
        yield running


@asynccontextmanager
async def clients(
    run: Rollout,
) -> AsyncIterator[tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic]]:
    async with (
        openai.AsyncOpenAI(base_url=f"{run.url}/v1", api_key="x", max_retries=0) as of_openai,
        anthropic.AsyncAnthropic(base_url=run.url, api_key="x", max_retries=0) as of_anthropic,
    ):
        yield of_openai, of_anthropic


@pytest.fixture
async def openai_client(run: Rollout) -> AsyncIterator[openai.AsyncOpenAI]:
    async with clients(run) as (client, _):
        yield client


@pytest.fixture
async def anthropic_client(run: Rollout) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with clients(run) as (_, client):
        yield client


def assert_one_conversation(run: Rollout) -> None:
    run.assert_exact()
    assert run.segments == 1
    text = run.context.chat.decode(run.engine.prompts[-1])
    for command, result in RESULTS.items():
        assert json.dumps(command) in text
        assert f"<tool_response>\n{result}\n</tool_response>" in text
    assert "I had better look. é" in text  # reasoning stays, whatever the client sends back
    outputs = [[call.output for call in turn.tool_calls] for turn in run.context.turns]
    assert outputs == [["a\nb"], ["/work", "today"], []]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_chat_completions(
    run: Rollout, openai_client: openai.AsyncOpenAI, is_streamed: bool
) -> None:
    client = openai_client
    function = {"name": "bash", "description": "Runs it.", "parameters": PARAMETERS}
    asked: dict[str, Any] = {
        "model": "policy",
        "tools": [{"type": "function", "function": function}],
    }
    messages: list[Any] = [{"role": "system", "content": "Be brief."}]
    messages.append({"role": "user", "content": [{"type": "text", "text": ASKED}]})
    while True:
        if is_streamed:
            async with client.chat.completions.stream(**asked, messages=messages) as stream:
                completion: Any = await stream.get_final_completion()
        else:
            completion = await client.chat.completions.create(**asked, messages=messages)
        [choice] = completion.choices
        messages.append(choice.message.model_dump(exclude_none=True))
        if not choice.message.tool_calls:
            break
        assert choice.finish_reason == "tool_calls"
        for call in reversed(choice.message.tool_calls):  # as they end, not as they were made
            command = json.loads(call.function.arguments)["command"]
            result = {"role": "tool", "tool_call_id": call.id, "content": RESULTS[command]}
            messages.append(result)
    assert (choice.finish_reason, choice.message.content) == ("stop", "Two files: a and b.")
    assert_one_conversation(run)
    if not is_streamed:
        assert completion.usage.prompt_tokens == len(run.engine.prompts[-1])


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_responses(
    run: Rollout, openai_client: openai.AsyncOpenAI, is_streamed: bool
) -> None:
    client = openai_client
    tool = {"type": "function", "name": "bash", "parameters": PARAMETERS, "strict": False}
    asked: dict[str, Any] = {"model": "policy", "instructions": "Be brief.", "tools": [tool]}
    items: list[Any] = [{"role": "user", "content": ASKED}]
    while True:
        if is_streamed:
            async with client.responses.stream(**asked, input=items) as stream:
                response: Any = await stream.get_final_response()
        else:
            response = await client.responses.create(**asked, input=items)
        items += [item.model_dump(exclude_none=True) for item in response.output]
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            break
        for call in reversed(calls):
            output = RESULTS[json.loads(call.arguments)["command"]]
            items.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": output}
            )
    assert response.output_text == "Two files: a and b."
    assert response.status == "completed"
    assert response.usage.input_tokens == len(run.engine.prompts[-1])
    assert_one_conversation(run)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_messages(
    run: Rollout, anthropic_client: anthropic.AsyncAnthropic, is_streamed: bool
) -> None:
    client = anthropic_client
    asked: dict[str, Any] = {
        "model": "policy",
        "system": "Be brief.",
        "max_tokens": 1000,
        "tools": [{"name": "bash", "description": "Runs it.", "input_schema": PARAMETERS}],
    }
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    while True:
        if is_streamed:
            async with client.messages.stream(**asked, messages=messages) as stream:
                message: Any = await stream.get_final_message()
        else:
            message = await client.messages.create(**asked, messages=messages)
        content = [block.model_dump(exclude_none=True) for block in message.content]
        messages.append({"role": "assistant", "content": content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            break
        assert message.stop_reason == "tool_use"
        results = [
            {"type": "tool_result", "tool_use_id": one.id, "content": RESULTS[one.input["command"]]}
            for one in reversed(calls)
        ]
        messages.append({"role": "user", "content": results})
    assert (message.stop_reason, message.content[0].text) == ("end_turn", "Two files: a and b.")
    assert message.usage.input_tokens == len(run.engine.prompts[-1])
    assert_one_conversation(run)


async def test_the_prompt_of_a_request_is_counted(
    run: Rollout, openai_client: openai.AsyncOpenAI, anthropic_client: anthropic.AsyncAnthropic
) -> None:
    client = anthropic_client
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    counted = await client.messages.count_tokens(model="policy", messages=messages)
    await client.messages.create(model="policy", max_tokens=100, messages=messages)
    assert counted.input_tokens == len(run.engine.prompts[0])
    [model] = (await openai_client.models.list()).data
    assert model.id == "policy"


async def test_refusals_are_errors_that_clients_know(chat: ChatFormat) -> None:
    async with rollout(chat, ["one"], max_model_len=64, max_turns=1) as run:
        async with clients(run) as (of_openai, of_anthropic):
            await _refusals(run, of_openai, of_anthropic)
        run.assert_exact()


async def _refusals(
    run: Rollout, of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic
) -> None:
    asked: Any = {"model": "policy", "max_tokens": 10}
    long: Any = [{"role": "user", "content": "x" * 500}]
    with pytest.raises(openai.BadRequestError) as refused:
        await of_openai.chat.completions.create(**asked, messages=long)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 64"):
        await of_anthropic.messages.create(**asked, messages=long)
    short: Any = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.BadRequestError, match="one reply a call"):
        await of_openai.chat.completions.create(**asked, messages=short, n=2)
    await of_openai.chat.completions.create(**asked, messages=short)
    with pytest.raises(anthropic.PermissionDeniedError, match="max_turns"):
        await of_anthropic.messages.create(**asked, messages=short)
    assert run.gateway.finish.result() is FinishReason.MAX_TURNS
