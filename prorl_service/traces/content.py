"""Optional content of spans: messages, calls, results, a verdict's report.

Messages are JSON in the form of the conventions for generative AI. Each model call has only what is
new since the previous one, so that long rollouts are not written many times over; the rollout's own
span has the task's messages and the last reply.
"""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from prorl_service.schemas import Message, Turn
from prorl_service.traces.tree import Node, TracedRollout, shown

MAX_JSON = 262_144
"""Most characters of an attribute; one that is cut is no longer valid JSON, but still readable."""


def add_content(root: Node, ended: TracedRollout) -> None:
    system, others = _split(ended.group.task.messages)
    asked = _json([_message(one) for one in others])
    if system:
        root.attributes["gen_ai.system_instructions"] = _json(
            [_text(one.content) for one in system]
        )
    root.attributes["gen_ai.input.messages"] = asked
    new: str | None = asked
    reply = None
    for node in root.walk():
        if node.turn is not None:
            if new is not None:
                node.attributes["gen_ai.input.messages"] = new
            reply = node.attributes["gen_ai.output.messages"] = _json([_reply(node.turn)])
            new = _results(node.turn)
        if node.call is not None:
            node.attributes["gen_ai.tool.call.arguments"] = _json(_cut(node.call.arguments))
            node.attributes["gen_ai.tool.call.result"] = shown(node.call.output)
    if reply is not None:
        root.attributes["gen_ai.output.messages"] = reply
    if ended.rollout.report is not None:
        for event in root.events[:1]:
            event.attributes["gen_ai.evaluation.explanation"] = _json(_cut(ended.rollout.report))


def _split(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Returns system messages and the others."""
    system = [one for one in messages if one.role == "system"]
    return system, [one for one in messages if one.role != "system"]


def _message(message: Message) -> dict[str, Any]:
    parts = []
    if message.reasoning_content:
        parts.append({"type": "reasoning", "content": shown(message.reasoning_content)})
    if message.role == "tool":
        parts.append(_response(message.content, message.tool_call_id))
    elif message.content:
        parts.append(_text(message.content))
    parts += [_call(one.function.name, one.function.arguments) for one in message.tool_calls]
    return {"role": message.role, "parts": parts}


def _reply(turn: Turn) -> dict[str, Any]:
    calls = [_call(call.name, call.arguments) for call in turn.tool_calls]
    parts = [_text(turn.text), *calls]
    return {"role": "assistant", "parts": parts, "finish_reason": turn.finish_reason}


def _results(turn: Turn) -> str | None:
    """Returns the answers that the next call sees, if the turn's record has them."""
    results = [_response(call.output) for call in turn.tool_calls]
    if turn.format_error is not None:
        results.append(_response(f"Format error: {turn.format_error}."))
    return _json([{"role": "tool", "parts": results}]) if results else None


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": shown(text)}


def _call(name: str, arguments: dict[str, JsonValue]) -> dict[str, Any]:
    return {"type": "tool_call", "name": shown(name), "arguments": _cut(arguments)}


def _response(output: str, call_id: str | None = None) -> dict[str, Any]:
    part = {"type": "tool_call_response", "response": shown(output)}
    return part if call_id is None else part | {"id": shown(call_id)}


def _cut(value: JsonValue) -> JsonValue:
    """Returns `value` with every text in it made fit to be shown."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, list):
        return [_cut(one) for one in value]
    if isinstance(value, dict):
        return {shown(key): _cut(one) for key, one in value.items()}
    return value


def _json(value: Any) -> str:
    return shown(json.dumps(value, ensure_ascii=False), MAX_JSON)
