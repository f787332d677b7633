"""Mistral: calls after `[TOOL_CALLS]`, up to the end of the reply.

Older tokenizers (to v7) write one JSON list of `{"name", "arguments", "id"}`, newer ones (from v11)
`NAME[ARGS]{...}` for each call, with `[CALL_ID]` before the arguments or without. Reasoning is
between `[THINK]` and `[/THINK]`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prorl_service.tokens.formats.base import Malformed, Problem, Reply, ToolCall, ToolSchema
from prorl_service.tokens.formats.hermes import call_of
from prorl_service.tokens.formats.values import read_json_at

CALLS = "[TOOL_CALLS]"
THINKING = ("[THINK]", "[/THINK]")
_HEAD = re.compile(
    r"\s*+(?:\[TOOL_CALLS\])?\s*+([^\s\[\]{}]++)\s*+(?:\[CALL_ID\]\s*+([^\s\[\]{}]++)\s*+)?\[ARGS\]\s*+"
)
_END = re.compile(r"\s*+\Z")
_PARTS = re.compile(r"\[(?:ARGS|CALL_ID)\]")


@dataclass(frozen=True)
class Mistral:
    name: str = "mistral"
    has_calls: bool = True

    def parse(
        self, text: str, tools: Sequence[ToolSchema] = (), *, is_reasoning: bool = False
    ) -> Reply:
        start = len(text) - len(text.lstrip())
        reasoning, opening = "", THINKING[0]
        if is_reasoning or text.startswith(opening, start):
            begin = start + len(opening) * text.startswith(opening, start)
            stop = text.find(THINKING[1], begin)
            if stop < 0:
                problem = Problem("the reasoning was not closed with [/THINK]", start, len(text))
                return Reply("", text[begin:].strip(), problem=problem)
            reasoning, start = text[begin:stop].strip(), stop + len(THINKING[1])
        calls_at = text.find(CALLS, start)
        content = text[start : calls_at if calls_at >= 0 else len(text)].strip()
        if calls_at < 0:
            stray = _PARTS.search(text, start)
            wrong = stray and Problem(
                f"a tool call must begin with {CALLS}", stray.start(), stray.end()
            )
            return Reply(content, reasoning, problem=wrong)
        try:
            return Reply(content, reasoning, _calls(text, calls_at + len(CALLS)))
        except Malformed as error:
            problem = Problem(str(error), error.start or calls_at, len(text))
            return Reply(content, reasoning, problem=problem)


def _calls(text: str, start: int) -> list[ToolCall]:
    if text[start:].lstrip().startswith("["):
        return _listed(text, len(text) - len(text[start:].lstrip()))
    calls: list[ToolCall] = []
    while _END.match(text, start) is None or not calls:
        head = _HEAD.match(text, start)
        if head is None:
            raise Malformed("the tool call must be written as NAME[ARGS]ARGUMENTS", start)
        arguments, start = read_json_at(text, head.end())
        if not isinstance(arguments, dict):
            raise Malformed("the arguments of the tool call must be a JSON object", head.start())
        calls.append(ToolCall(head[1], arguments, head[2]))
    return calls


def _listed(text: str, start: int) -> list[ToolCall]:
    values, stop = read_json_at(text, start)
    if rest := text[stop:].strip():
        raise Malformed(f"nothing may follow the list of tool calls, not {rest[:40]!r}", stop)
    if not isinstance(values, list) or not values:
        raise Malformed("the tool calls must be a JSON list", start)
    return [_with_arguments(value) for value in values]


def _with_arguments(value: Any) -> ToolCall:
    """Reads a call; some Mistral models write its arguments as JSON text."""
    if isinstance(value, dict) and isinstance(value.get("arguments"), str):
        arguments, _ = read_json_at(value["arguments"], 0)
        value = {**value, "arguments": arguments}
    return call_of(value)


MISTRAL = Mistral()
