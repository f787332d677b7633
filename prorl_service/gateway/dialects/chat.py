"""Chat Completions, OpenAI's older dialect: requests read, replies written, streamed and not.

Source: OpenAI's API reference, and what harnesses send. Reasoning travels as `reasoning_content`,
as with vLLM's servers and most harnesses.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prorl_service.gateway.calls import (
    CallReply,
    CallRequest,
    ContextTooLong,
    Refused,
    ReplyCall,
    Said,
)
from prorl_service.gateway.dialects import fields
from prorl_service.gateway.dialects.fields import Body, data
from prorl_service.tokens.formats import ToolSchema

USED = ("messages", "tools", "max_tokens", "max_completion_tokens", "stream", "stream_options")
USED_TOO = ("stop", "model", "n", "functions")
DONE = b"data: [DONE]\n\n"


def request(body: Body) -> CallRequest:
    """Raises `Refused`."""
    if body.get("n") not in (None, 1):
        raise Refused("n: one reply a call; ask again for another")
    if body.get("functions"):
        raise Refused("functions: use tools")
    tools, left_out = _tools(fields.offered(body))
    return CallRequest(
        conversation=[
            _said(one, n) for n, one in enumerate(fields.items(body.get("messages"), "messages"))
        ],
        tools=tools,
        max_tokens=fields.limit(body, "max_completion_tokens", "max_tokens"),
        is_streamed=bool(body.get("stream")),
        stop=fields.stop_of(body.get("stop"), "stop"),
        without_effect=fields.without_effect(body, (*USED, *USED_TOO)),
        left_out=tuple(left_out),
    )


def _tools(given: Any) -> tuple[list[ToolSchema], list[str]]:
    tools, left_out = [], []
    for one in fields.items(given, "tools"):
        match one:
            case {"type": "function", "function": {"name": str(name)} as function}:
                described = function.get("description"), function.get("parameters")
                tools.append(fields.schema(name, *described))
            case _:
                left_out.append(str(one.get("type")))
    return tools, left_out


def _said(given: Body, number: int) -> Said:
    where = f"messages.{number}"
    role = given.get("role")
    content, at = given.get("content"), f"{where}.content"
    match role:
        case "system" | "developer":
            return Said(fields.message("system", content, at))
        case "user":
            return Said(fields.message("user", content, at))
        case "tool":
            call_id = fields.string(given.get("tool_call_id"), f"{where}.tool_call_id")
            return Said(fields.message("tool", content, at, call_id))
        case "assistant":
            return _assistant(given, fields.text_of(content, at), where)
    raise Refused(f"{where}.role: {role!r} is not known")


def _assistant(given: Body, text: str, where: str) -> Said:
    calls, raw = [], []
    for one in fields.items(given.get("tool_calls") or [], f"{where}.tool_calls"):
        function = one.get("function") or {}
        name = fields.string(function.get("name"), f"{where}.tool_calls.function.name")
        arguments, as_text = fields.arguments_of(function.get("arguments"))
        calls.append((fields.string(one.get("id"), f"{where}.tool_calls.id"), name, arguments))
        raw.append(as_text)
    reasoning = given.get("reasoning_content") or given.get("reasoning") or ""
    message = fields.assistant(text, fields.text_of(reasoning, f"{where}.reasoning_content"), calls)
    return Said(message, raw_arguments=tuple(raw))


# --- replies ------------------------------------------------------------------------------------


def reply(answer: CallReply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [_call(one) for one in answer.calls]
    choice = {"index": 0, "message": message, "finish_reason": _ending(answer), "logprobs": None}
    return {**_head(answer, "chat.completion"), "choices": [choice], "usage": _usage(answer)}


def waiting(pending: CallReply, sent: int) -> bytes:
    return b": keep-alive\n\n"


def events(answer: CallReply, body: Body, sent: int = 0) -> Iterator[bytes]:
    """Yields the stream of a reply; `body` is that of its request."""
    head = _head(answer, "chat.completion.chunk")

    def chunk(delta: Mapping[str, Any], ending: str | None = None) -> bytes:
        return data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": ending}]})

    yield chunk({"role": "assistant", "content": ""})
    if answer.reasoning:
        yield chunk({"reasoning_content": answer.reasoning})
    if answer.text:
        yield chunk({"content": answer.text})
    for index, call in enumerate(answer.calls):
        yield chunk({"tool_calls": [{"index": index, **_call(call)}]})
    yield chunk({}, _ending(answer))
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield data({**head, "choices": [], "usage": _usage(answer)})
    yield DONE


def error(refusal: Refused) -> dict[str, Any]:
    code = "context_length_exceeded" if isinstance(refusal, ContextTooLong) else None
    return {"error": {"message": str(refusal), "type": refusal.kind, "param": None, "code": code}}


def error_event(refusal: Refused, pending: CallReply, sent: int) -> bytes:
    return data(error(refusal))


def _head(answer: CallReply, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.name}",
        "object": kind,
        "created": answer.created_at,
        "model": answer.model,
    }


def _call(call: ReplyCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _ending(answer: CallReply) -> str:
    return "length" if answer.ending == "length" else "tool_calls" if answer.calls else "stop"


def _usage(answer: CallReply) -> dict[str, Any]:
    usage = answer.usage
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.sampled,
        "total_tokens": usage.prompt + usage.sampled,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
