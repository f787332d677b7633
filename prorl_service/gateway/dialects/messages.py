"""Messages, Anthropic's dialect: requests read, replies written, streamed and not.

Source: Anthropic's API reference, and what Claude Code and pi send. A reply's reasoning is a
`thinking` block with a signature; clients send it back untouched.
"""

from collections.abc import Iterator
from typing import Any

from prorl_service.gateway.calls import CallReply, CallRequest, NoThreads, Refused, Said
from prorl_service.gateway.dialects import fields
from prorl_service.gateway.dialects.fields import Body, data
from prorl_service.schemas import Message
from prorl_service.tokens.formats import ToolSchema

USED = ("messages", "system", "tools", "max_tokens", "stream", "stop_sequences", "model")
BILLING = "x-anthropic-billing-header"
"""Beginning of a block that Claude Code puts before its system prompt, for accounts only."""


def request(body: Body) -> CallRequest:
    """Raises `Refused`."""
    if body.get("thread"):
        raise NoThreads
    tools, left_out = _tools(fields.offered(body))
    conversation = [_system(body["system"])] if body.get("system") else []
    for number, one in enumerate(fields.items(body.get("messages"), "messages")):
        conversation += _said(one, f"messages.{number}")
    return CallRequest(
        conversation=conversation,
        takes_broken_calls=bool(body.get("stream")),
        call_prefix="toolu_",
        tools=tools,
        max_tokens=fields.limit(body, "max_tokens"),
        is_streamed=bool(body.get("stream")),
        stop=fields.stop_of(body.get("stop_sequences"), "stop_sequences"),
        without_effect=fields.without_effect(body, USED),
        left_out=tuple(left_out),
    )


def _tools(given: Any) -> tuple[list[ToolSchema], list[str]]:
    tools, left_out = [], []
    for one in fields.items(given, "tools"):
        if isinstance(one.get("name"), str) and isinstance(one.get("input_schema"), dict):
            tools.append(fields.schema(one["name"], one.get("description"), one["input_schema"]))
        else:
            left_out.append(str(one.get("type") or one.get("name")))
    return tools, left_out


def _system(given: Any) -> Said:
    blocks = given if isinstance(given, list) else [given]
    texts = [fields.text_of([one], "system") for one in blocks]
    said = "\n\n".join(text for text in texts if not text.startswith(BILLING))
    return Said(Message(role="system", content=said))


def _said(given: Body, where: str) -> Iterator[Said]:
    content = given.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    match given.get("role"):
        case "user":
            yield from _user(fields.items(blocks, f"{where}.content"), where)
        case "assistant":
            yield _assistant(fields.items(blocks, f"{where}.content"), where)
        case "system":
            yield Said(fields.message("system", content, where))
        case role:
            raise Refused(f"{where}.role: {role!r} is not known")


def _user(blocks: list[dict[str, Any]], where: str) -> Iterator[Said]:
    """Yields the results of tools, which answer the turn before, and then the text."""
    others = []
    for one in blocks:
        if one.get("type") == "tool_result":
            call_id = fields.string(one.get("tool_use_id"), f"{where}.tool_use_id")
            yield Said(fields.message("tool", one.get("content"), f"{where}.content", call_id))
        else:
            others.append(one)
    if others:
        yield Said(fields.message("user", others, f"{where}.content"))


def _assistant(blocks: list[dict[str, Any]], where: str) -> Said:
    texts, thoughts, calls, raw = [], [], [], []
    for one in blocks:
        match one:
            case {"type": "thinking"}:
                thoughts.append(fields.string(one.get("thinking"), f"{where}.thinking"))
            case {"type": "redacted_thinking"}:
                pass
            case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
                arguments, as_text = fields.arguments_of(one.get("input"))
                calls.append((call_id, name, arguments))
                raw.append(as_text)
            case _:
                texts.append(fields.text_of([one], f"{where}.content"))
    message = fields.assistant("".join(texts), "".join(thoughts), calls)
    return Said(message, raw_arguments=tuple(raw))


# --- replies ------------------------------------------------------------------------------------


def reply(answer: CallReply) -> dict[str, Any]:
    content = [_whole(one) for one in _blocks(answer)]
    return _message(answer, content, _usage(answer)) | _ending(answer)


def waiting(pending: CallReply, sent: int) -> bytes:
    return data({"type": "ping"}, "ping")


def events(answer: CallReply, body: Body, sent: int = 0) -> Iterator[bytes]:
    """Yields the stream of a reply."""
    begun = _message(answer, [], _usage(answer) | {"output_tokens": 0})
    yield _event("message_start", message=begun)
    for index, block in enumerate(_blocks(answer)):
        empty, deltas = _parts(block)
        yield _event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta=_ending(answer), usage=_usage(answer))
    yield _event("message_stop")


def error(refusal: Refused) -> dict[str, Any]:
    found: dict[str, Any] = {"type": refusal.kind, "message": str(refusal)}
    if isinstance(refusal, NoThreads):
        found["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": found}


def error_event(refusal: Refused, pending: CallReply, sent: int) -> bytes:
    return data(error(refusal), "error")


def _event(kind: str, **values: Any) -> bytes:
    return data({"type": kind, **values}, kind)


def _blocks(answer: CallReply) -> Iterator[dict[str, Any]]:
    """Yields blocks; the input of a call is its JSON text, under `arguments`."""
    if answer.reasoning:
        thinking = {"type": "thinking", "thinking": answer.reasoning}
        yield {**thinking, "signature": f"turn_{answer.name}"}
    if answer.text:
        yield {"type": "text", "text": answer.text}
    for call in answer.calls:
        yield {"type": "tool_use", "id": call.id, "name": call.name, "arguments": call.arguments}


def _whole(block: dict[str, Any]) -> dict[str, Any]:
    """Returns a block as it is in a reply that is not streamed."""
    if block["type"] != "tool_use":
        return block
    arguments, _ = fields.arguments_of(block["arguments"])
    return {"type": "tool_use", "id": block["id"], "name": block["name"], "input": arguments}


def _parts(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the empty block that a stream begins with, and the deltas that fill it."""
    empty: dict[str, Any]
    match block:
        case {"type": "thinking", "thinking": thought, "signature": sign}:
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": thought},
                {"type": "signature_delta", "signature": sign},
            ]
        case {"type": "text", "text": text}:
            empty = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": text}]
        case _:
            empty = {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": block["arguments"]}]
    return empty, deltas


def _message(
    answer: CallReply, content: list[dict[str, Any]], usage: dict[str, int]
) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.name}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _ending(answer: CallReply) -> dict[str, str | None]:
    reason, stop = "end_turn", None
    if answer.ending == "length":
        reason = "max_tokens"
    elif answer.calls:
        reason = "tool_use"
    elif answer.stop is not None:
        reason, stop = "stop_sequence", answer.stop
    return {"stop_reason": reason, "stop_sequence": stop}


def _usage(answer: CallReply) -> dict[str, int]:
    """Returns numbers of tokens; those that were cached do not count as input here."""
    usage = answer.usage
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.sampled,
    }
