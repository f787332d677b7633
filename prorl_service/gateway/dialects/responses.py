"""Responses, OpenAI's newer dialect: requests read, replies written, streamed and not.

Source: OpenAI's API reference, and what Codex, pi and openai-agents send. A turn of the model is
several items; their ids name the turn, and clients send them back untouched.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
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
from prorl_service.schemas import Message
from prorl_service.tokens.formats import ToolSchema

WHOLE = ("previous_response_id", "conversation", "prompt")
"""Fields that name a conversation which a server holds."""
USED = ("input", "instructions", "tools", "max_output_tokens", "stream", "model", *WHOLE)
BETWEEN = "__"
"""Text between the name of a namespace and that of a tool in it, for the policy."""
OPENING = ("response.created", "response.in_progress")
"""Events that begin a stream. The second one keeps it alive, too: Codex's time-out does not count
comments."""


def request(body: Body) -> CallRequest:
    """Raises `Refused`."""
    for name in WHOLE:
        if body.get(name):
            raise Refused(f"{name}: send the whole conversation")
    tools, left_out = _tools(fields.offered(body))
    return CallRequest(
        conversation=list(_conversation(body)),
        tools=tools,
        max_tokens=fields.limit(body, "max_output_tokens"),
        is_streamed=bool(body.get("stream")),
        without_effect=fields.without_effect(body, USED),
        left_out=tuple(left_out),
    )


def _tools(given: Any) -> tuple[list[ToolSchema], list[str]]:
    tools, left_out = [], []
    for one in fields.items(given, "tools"):
        match one:
            case {"type": "function", "name": str(name)}:
                tools.append(fields.schema(name, one.get("description"), one.get("parameters")))
            case {"type": "namespace", "name": str(name), "tools": list(inside)}:
                for tool in fields.items(inside, "tools"):
                    known = f"{name}{BETWEEN}{tool.get('name')}"
                    described = tool.get("description"), tool.get("parameters")
                    tools.append(fields.schema(known, *described))
            case _:
                left_out.append(str(one.get("type")))
    return tools, left_out


# --- conversation -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Turn:
    """Items of one turn of the model, as they are read."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)

    def ends_before(self, kind: str) -> bool:
        """Returns whether an item of this kind begins another turn: reasoning comes first in one,
        and text before calls."""
        has_more = bool(self.text or self.calls)
        return has_more if kind == "reasoning" else kind == "message" and bool(self.calls)

    def said(self) -> Said:
        message = fields.assistant(self.text, self.reasoning, self.calls)
        return Said(message, raw_arguments=tuple(self.raw))


def _conversation(body: Body) -> Iterator[Said]:
    if body.get("instructions"):
        text = fields.string(body["instructions"], "instructions")
        yield Said(Message(role="system", content=text))
    given = body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    turn: _Turn | None = None
    for number, one in enumerate(fields.items(given, "input")):
        kind = one.get("type", "message")
        is_model = kind in ("reasoning", "function_call") or one.get("role") == "assistant"
        if turn is not None and (not is_model or turn.ends_before(kind)):
            yield turn.said()
            turn = None
        if is_model:
            turn = turn or _Turn()
            _add(turn, one, kind, f"input.{number}")
        else:
            yield _said(one, kind, f"input.{number}")
    if turn is not None:
        yield turn.said()


def _add(turn: _Turn, item: Body, kind: str, where: str) -> None:
    match kind:
        case "reasoning":
            parts = item.get("content") or item.get("summary")
            turn.reasoning += fields.text_of(parts, f"{where}.content")
        case "message":
            turn.text += fields.text_of(item.get("content"), f"{where}.content")
        case _:
            name = fields.string(item.get("name"), f"{where}.name")
            if item.get("namespace"):
                name = f"{item['namespace']}{BETWEEN}{name}"
            arguments, raw = fields.arguments_of(item.get("arguments"))
            call_id = fields.string(item.get("call_id"), f"{where}.call_id")
            turn.calls.append((call_id, name, arguments))
            turn.raw.append(raw)


def _said(item: Body, kind: str, where: str) -> Said:
    match kind, item.get("role"):
        case "function_call_output", _:
            call_id = fields.string(item.get("call_id"), f"{where}.call_id")
            return Said(fields.message("tool", item.get("output"), f"{where}.output", call_id))
        case "message", ("system" | "developer"):
            return Said(fields.message("system", item.get("content"), f"{where}.content"))
        case "message", "user":
            return Said(fields.message("user", item.get("content"), f"{where}.content"))
    raise Refused(f"{where}: items of type {kind!r} are not known")


# --- replies ------------------------------------------------------------------------------------


def reply(answer: CallReply) -> dict[str, Any]:
    return _response(answer, _items(answer, {}))


def waiting(pending: CallReply, sent: int) -> bytes:
    kind = OPENING[min(sent, 1)]
    return _event(sent, kind, response=_begun(pending))


def events(answer: CallReply, body: Body, sent: int = 0) -> Iterator[bytes]:
    """Yields the stream of a reply; `body` is that of its request."""
    items = _items(answer, _namespaces(body))
    left = islice(_events(answer, items), min(sent, len(OPENING)), None)
    for number, (kind, values) in enumerate(left, sent):
        yield _event(number, kind, **values)


def error(refusal: Refused) -> dict[str, Any]:
    code = "context_length_exceeded" if isinstance(refusal, ContextTooLong) else None
    return {"error": {"message": str(refusal), "type": refusal.kind, "param": None, "code": code}}


def error_event(refusal: Refused, pending: CallReply, sent: int) -> bytes:
    failed = _response(pending, []) | {"status": "failed", "usage": None, **error(refusal)}
    return _event(sent, "response.failed", response=failed)


def _event(number: int, kind: str, **values: Any) -> bytes:
    return data({"type": kind, "sequence_number": number, **values}, kind)


def _namespaces(body: Body) -> dict[str, tuple[str, str]]:
    """Returns namespace and name of the tools in namespaces, by the names that the policy knows."""
    return {
        f"{space['name']}{BETWEEN}{tool.get('name')}": (space["name"], tool.get("name"))
        for space in body.get("tools") or []
        if space.get("type") == "namespace"
        for tool in space.get("tools") or []
    }


def _items(answer: CallReply, namespaces: dict[str, tuple[str, str]]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if answer.reasoning:
        content = [{"type": "reasoning_text", "text": answer.reasoning}]
        item = {"type": "reasoning", "id": f"rs_{answer.name}", "summary": []}
        items.append({**item, "content": content, "encrypted_content": None})
    if answer.text or not (answer.reasoning or answer.calls):
        part = {"type": "output_text", "text": answer.text, "annotations": []}
        item = {"type": "message", "id": f"msg_{answer.name}", "role": "assistant"}
        items.append({**item, "status": "completed", "content": [part]})
    return items + [_call(one, namespaces) for one in answer.calls]


def _call(call: ReplyCall, namespaces: dict[str, tuple[str, str]]) -> dict[str, Any]:
    item = {
        "type": "function_call",
        "id": f"fc_{call.id}",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }
    if call.name in namespaces:
        item["namespace"], item["name"] = namespaces[call.name]
    return item


def _events(answer: CallReply, items: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind in OPENING:
        yield kind, {"response": _begun(answer)}
    for index, item in enumerate(items):
        empty, inside = _parts(item)
        yield "response.output_item.added", {"output_index": index, "item": empty}
        for kind, values in inside:
            yield kind, {"output_index": index, "item_id": item["id"], **values}
        yield "response.output_item.done", {"output_index": index, "item": item}
    ended = _response(answer, items)
    yield f"response.{ended['status']}", {"response": ended}


def _parts(item: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """Returns the item as a stream begins it, and what fills it."""
    match item["type"]:
        case "message":
            [part] = item["content"]
            at = {"content_index": 0}
            return {**item, "status": "in_progress", "content": []}, [
                ("response.content_part.added", {**at, "part": {**part, "text": ""}}),
                ("response.output_text.delta", {**at, "delta": part["text"]}),
                ("response.output_text.done", {**at, "text": part["text"]}),
                ("response.content_part.done", {**at, "part": part}),
            ]
        case "reasoning":
            [part] = item["content"]
            at = {"content_index": 0}
            return {**item, "content": []}, [
                ("response.content_part.added", {**at, "part": {**part, "text": ""}}),
                ("response.reasoning_text.delta", {**at, "delta": part["text"]}),
                ("response.reasoning_text.done", {**at, "text": part["text"]}),
                ("response.content_part.done", {**at, "part": part}),
            ]
    arguments = item["arguments"]
    return {**item, "arguments": "", "status": "in_progress"}, [
        ("response.function_call_arguments.delta", {"delta": arguments}),
        ("response.function_call_arguments.done", {"arguments": arguments}),
    ]


def _begun(pending: CallReply) -> dict[str, Any]:
    return _response(pending, []) | {"status": "in_progress", "usage": None}


def _response(answer: CallReply, items: list[dict[str, Any]]) -> dict[str, Any]:
    is_cut = answer.ending == "length"
    return {
        "id": f"resp_{answer.name}",
        "object": "response",
        "created_at": answer.created_at,
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "error": None,
        "model": answer.model,
        "output": items,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": _usage(answer),
    }


def _usage(answer: CallReply) -> dict[str, Any]:
    usage = answer.usage
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.sampled,
    }
