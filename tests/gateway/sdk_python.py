"""Programs on the SDKs for Python, one for each method that calls a model."""

import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
from anthropic import beta_async_tool
from openai.lib.streaming.chat import ChatCompletionStreamState
from pydantic import BaseModel

ASKED = "Which files are there?"
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
RESULTS = {"ls -a": "a\nb", "pwd": "/work", "date": "today"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program got of the policy."""

    text: str
    """Text of the last reply."""
    commands: tuple[str, ...] = ()
    """Commands of all calls, in their order."""
    parsed: int | None = None
    """Answer of a reply that the SDK parsed."""


class Answer(BaseModel):
    answer: int


Json = dict[str, Any]
Ask = Callable[..., Coroutine[Any, Any, Any]]
Task = Callable[[Ask], Coroutine[Any, Any, Outcome]]


async def run(method: str, base_url: str) -> Outcome:
    if method.startswith(("chat", "responses")):
        async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="x", max_retries=0) as of:
            return await _of_openai(of, method)
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="x", max_retries=0) as client:
        return await _of_anthropic(client, method)


# --- OpenAI -------------------------------------------------------------------------------------


async def _of_openai(client: openai.AsyncOpenAI, method: str) -> Outcome:
    chat: Any = client.chat.completions
    responses: Any = client.responses

    async def chat_streamed(**asked: Any) -> Any:
        state = ChatCompletionStreamState()
        async for chunk in await chat.create(**asked, stream=True):
            state.handle_chunk(chunk)
        return state.get_final_completion()

    async def chat_stream(**asked: Any) -> Any:
        async with chat.stream(**asked) as stream:
            return await stream.get_final_completion()

    async def responses_streamed(**asked: Any) -> Any:
        events = [event async for event in await responses.create(**asked, stream=True)]
        return events[-1].response

    async def responses_stream(**asked: Any) -> Any:
        async with responses.stream(**asked) as stream:
            return await stream.get_final_response()

    tasks: dict[str, tuple[Task, Ask]] = {
        "chat.create": (_chat, chat.create),
        "chat.create streamed": (_chat, chat_streamed),
        "chat.stream": (_chat, chat_stream),
        "chat.parse": (_chat_parsed, chat.parse),
        "chat.stream parsed": (_chat_parsed, chat_stream),
        "responses.create": (_responses, responses.create),
        "responses.create streamed": (_responses, responses_streamed),
        "responses.stream": (_responses, responses_stream),
        "responses.parse": (_responses_parsed, responses.parse),
        "responses.stream parsed": (_responses_parsed, responses_stream),
    }
    task, ask = tasks[method]
    return await task(ask)


async def _chat(ask: Ask) -> Outcome:
    tool = {"type": "function", "function": {"name": "bash", "parameters": PARAMETERS}}
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": ASKED}]}]
    commands: list[str] = []
    while True:
        [choice] = (await ask(model="policy", messages=messages, tools=[tool])).choices
        message = choice.message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            assert choice.finish_reason == "stop"
            return Outcome(message.content, tuple(commands))
        assert choice.finish_reason == "tool_calls"
        commands += [json.loads(call.function.arguments)["command"] for call in message.tool_calls]
        for call in reversed(message.tool_calls):  # as they end, not as they were made
            result = RESULTS[json.loads(call.function.arguments)["command"]]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def _chat_parsed(ask: Ask) -> Outcome:
    messages = [{"role": "user", "content": ASKED}]
    [choice] = (await ask(model="policy", messages=messages, response_format=Answer)).choices
    return Outcome(choice.message.content, parsed=choice.message.parsed.answer)


async def _responses(ask: Ask) -> Outcome:
    tool = {"type": "function", "name": "bash", "parameters": PARAMETERS, "strict": False}
    items: list[Any] = [{"role": "user", "content": ASKED}]
    commands: list[str] = []
    while True:
        response = await ask(model="policy", input=items, tools=[tool])
        assert response.status == "completed"
        items += [item.model_dump(exclude_none=True) for item in response.output]
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return Outcome(response.output_text, tuple(commands))
        commands += [json.loads(call.arguments)["command"] for call in calls]
        for call in reversed(calls):
            result = RESULTS[json.loads(call.arguments)["command"]]
            output = {"type": "function_call_output", "call_id": call.call_id, "output": result}
            items.append(output)


async def _responses_parsed(ask: Ask) -> Outcome:
    response = await ask(model="policy", input=ASKED, text_format=Answer)
    return Outcome(response.output_text, parsed=response.output_parsed.answer)


# --- Anthropic ----------------------------------------------------------------------------------


async def _of_anthropic(client: anthropic.AsyncAnthropic, method: str) -> Outcome:
    messages: Any = client.messages

    async def streamed(**asked: Any) -> Any:
        return await _collected(await messages.create(**asked, stream=True))

    async def stream(**asked: Any) -> Any:
        async with messages.stream(**asked) as events:
            return await events.get_final_message()

    if method.startswith("tool_runner"):
        return await _tool_runner(client, is_streamed=method.endswith("streamed"))
    tasks: dict[str, tuple[Task, Ask]] = {
        "messages.create": (_messages, messages.create),
        "messages.create streamed": (_messages, streamed),
        "messages.stream": (_messages, stream),
        "messages.parse": (_messages_parsed, messages.parse),
        "messages.stream parsed": (_messages_parsed, stream),
    }
    task, ask = tasks[method]
    return await task(ask)


async def _collected(events: Any) -> Any:
    """Returns the message of a raw stream."""
    blocks: list[Json] = []
    async for event in events:
        match event.type:
            case "message_start":
                message = event.message
            case "content_block_start":
                blocks.append({**event.content_block.model_dump(), "json": ""})
            case "content_block_delta":
                delta = event.delta.model_dump(exclude={"type"})
                for name, text in delta.items():
                    key = "json" if name == "partial_json" else name
                    blocks[-1][key] = (blocks[-1].get(key) or "") + text
            case "message_delta":
                message.stop_reason = event.delta.stop_reason
    for block in blocks:
        written = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(written)
    return anthropic.types.Message.model_validate({**message.model_dump(), "content": blocks})


async def _messages(ask: Ask) -> Outcome:
    asked: Json = {"model": "policy", "max_tokens": 1000}
    tools = [{"name": "bash", "input_schema": PARAMETERS}]
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    commands: list[str] = []
    while True:
        message = await ask(**asked, tools=tools, messages=messages)
        content = [block.model_dump(exclude_none=True) for block in message.content]
        messages.append({"role": "assistant", "content": content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            assert message.stop_reason == "end_turn"
            return Outcome(message.content[-1].text, tuple(commands))
        assert message.stop_reason == "tool_use"
        commands += [call.input["command"] for call in calls]
        results = [
            {"type": "tool_result", "tool_use_id": one.id, "content": RESULTS[one.input["command"]]}
            for one in reversed(calls)
        ]
        messages.append({"role": "user", "content": results})


async def _messages_parsed(ask: Ask) -> Outcome:
    messages = [{"role": "user", "content": ASKED}]
    asked: Json = {"model": "policy", "max_tokens": 1000, "output_format": Answer}
    message = await ask(**asked, messages=messages)
    return Outcome(message.content[-1].text, parsed=message.parsed_output.answer)


async def _tool_runner(client: anthropic.AsyncAnthropic, *, is_streamed: bool) -> Outcome:
    commands: list[str] = []

    @beta_async_tool
    async def bash(command: str) -> str:
        """Runs it."""
        commands.append(command)
        return RESULTS[command]

    runner: Any = client.beta.messages.tool_runner(
        model="policy",
        max_tokens=1000,
        messages=[{"role": "user", "content": ASKED}],
        tools=[bash],
        stream=is_streamed,
    )
    last = await runner.until_done()
    return Outcome(last.content[-1].text, tuple(commands))
