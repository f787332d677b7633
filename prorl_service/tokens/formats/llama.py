"""Llama 3.x: a reply that is `{"name": ..., "parameters": {...}}` as a whole is a call.

Nothing marks a call, so a reply that begins like one has to be one: it is never taken for an
answer. `;` separates several calls. `<|python_tag|>` may be before them. Llama 3 does not reason.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from prorl_service.tokens.formats.base import (
    Malformed,
    Problem,
    Reply,
    ToolCall,
    ToolSchema,
)
from prorl_service.tokens.formats.hermes import call_of
from prorl_service.tokens.formats.values import read_json_at

PYTHON_TAG = "<|python_tag|>"
_BEGINS_A_CALL = re.compile(
    rf'\s*+(?:{re.escape(PYTHON_TAG)}|\{{\s*+"(?:name|type|function|parameters|arguments)")'
)
_BETWEEN = re.compile(r"\s*+(?:;\s*+)?")


@dataclass(frozen=True)
class Llama:
    name: str = "llama-3"
    has_calls: bool = True

    def parse(
        self, text: str, tools: Sequence[ToolSchema] = (), *, is_reasoning: bool = False
    ) -> Reply:
        if not tools or _BEGINS_A_CALL.match(text) is None:
            return Reply(text.strip())
        start = len(text) - len(text.lstrip().removeprefix(PYTHON_TAG).lstrip())
        try:
            return Reply("", calls=_calls(text, start))
        except Malformed as error:
            return Reply("", problem=Problem(str(error), error.start, len(text)))


def _calls(text: str, start: int) -> list[ToolCall]:
    calls: list[ToolCall] = []
    while start < len(text) or not calls:
        value, stop = read_json_at(text, start)
        key = "parameters" if isinstance(value, dict) and "parameters" in value else "arguments"
        calls.append(call_of(value, key))
        between = _BETWEEN.match(text, stop)
        assert between is not None
        start = between.end()
    return calls


LLAMA = Llama()
