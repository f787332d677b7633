"""Hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. Qwen2.5, Qwen3, Hermes."""

from prorl_service.tokens.formats.base import Malformed, ToolCall, Types
from prorl_service.tokens.formats.tagged import Tagged
from prorl_service.tokens.formats.values import read_json

_BODY = r'\s*+\{(?:[^"<\\]++|"(?:[^"\\\n]++|\\.)*+")*+'
"""Body of a call. Linear even if many calls are not closed: backslashes are allowed only in
strings, so a string of one attempt is not a string of the next."""


def call_of(value: object, arguments_key: str = "arguments") -> ToolCall:
    """Returns the call that a JSON object describes. Raises `Malformed`."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise Malformed('the tool call must be a JSON object with a string "name"')
    arguments = value.get(arguments_key, {})
    if not isinstance(arguments, dict):
        raise Malformed(f'"{arguments_key}" of the tool call must be a JSON object')
    id_ = value.get("id")
    return ToolCall(value["name"], arguments, id_ if isinstance(id_, str) else None)


def _read(body: str, types: Types) -> list[ToolCall]:
    return [call_of(read_json(body))]


HERMES = Tagged("hermes", ("<tool_call>", "</tool_call>"), _read, body=_BODY)
