"""Hermes tool calls, read from our own decode of the sampled ids.

`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them, after the reasoning.
Only reads: nothing is repaired, and nothing parsed is ever written back into the token chain. One
malformed call voids the reply, so that a model is never half obeyed; the problem is worded for the
model to read and learn from.
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK, _END_THINK = "<think>", "</think>"
_CALL = re.compile(_OPEN + r'\s*+\{(?:[^"<\\]++|"(?:[^"\\\n]++|\\.)*+")*+' + _CLOSE)
"""Tags in the strings of its JSON are text. Linear where many are not closed: no backslash is
allowed outside strings, so a string of one attempt is no string of the next."""
_TAGS_AND_CALLS = re.compile(rf"{_THINK}|{_END_THINK}(?:\s*+{_END_THINK})*+|{_CALL.pattern}")

MAX_DEPTH = 64
"""Levels of lists and objects in a call. JSON readers further on give up at some hundreds."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """`content` is the text outside reasoning and calls. With a `problem` there are no `calls`."""

    content: str
    calls: list[ToolCall] = field(default_factory=list)
    problem: str | None = None


class _Malformed(Exception):
    pass


def parse_reply(text: str) -> Reply:
    """Never raises; O(len(text))."""
    visible, closed = _without_reasoning(text)
    if not closed:
        return Reply("", problem="the reasoning was not closed with </think>")
    content, bodies = _without_calls(visible)
    if _OPEN in content or _CLOSE in content:
        return Reply(content, problem=f"{_OPEN} and {_CLOSE} do not pair up")
    try:
        calls = [_parse_call(body) for body in bodies]
    except _Malformed as problem:
        return Reply(content, problem=str(problem))
    return Reply(content.strip(), calls)


def _without_reasoning(text: str) -> tuple[str, bool]:
    """What is outside the reasoning, and whether the reasoning ended.

    The opening tag may be part of the prompt, so the first closing tag ends reasoning without one
    as well; a later closing tag without one is text, and so are tags in the strings of a call.
    """
    visible: list[str] = []
    start, reasons, has_reasoned = 0, False, False
    for tag in _TAGS_AND_CALLS.finditer(text):
        if tag[0] == _THINK and not reasons:
            visible.append(text[start : tag.start()])
            reasons = True
        elif tag[0].startswith(_END_THINK) and (reasons or not has_reasoned):
            visible = visible if reasons else []
            start, reasons, has_reasoned = tag.end(), False, True
    return "".join([*visible, text[start:]]), not reasons


def _without_calls(text: str) -> tuple[str, list[str]]:
    """What is outside the calls, tags that pair with none included, and the inside of each call."""
    outside, bodies, end = [], [], 0
    while (start := text.find(_OPEN, end)) >= 0 and (close := _closing_tag(text, start)) >= 0:
        outside.append(text[end:start])
        bodies.append(text[start + len(_OPEN) : close])
        end = close + len(_CLOSE)
    return "".join([*outside, text[end:]]), bodies


def _closing_tag(text: str, start: int) -> int:
    """Index of the tag that closes the call at `start`; negative if there is none."""
    call = _CALL.match(text, start)
    return call.end() - len(_CLOSE) if call else text.find(_CLOSE, start)


def _parse_call(body: str) -> ToolCall:
    try:
        call = _DECODER.decode(body)
        if _is_deeper_than(MAX_DEPTH, call):
            raise RecursionError
        if "\\u" in body:  # nothing else can make a lone surrogate
            json.dumps(call, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise _Malformed("the tool call holds a lone surrogate escape") from None
    except RecursionError:
        raise _Malformed(f"the tool call is nested too deeply: over {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise _Malformed(f"the tool call is not valid JSON: {error}") from None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise _Malformed('the tool call must be a JSON object with a string "name"')
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        raise _Malformed('"arguments" of the tool call must be a JSON object')
    return ToolCall(call["name"], arguments)


def _is_deeper_than(levels: int, value: Any) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [child for parent in layer for child in _children(parent)]
        if not layer:
            return False
    return any(isinstance(one, dict | list) for one in layer)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number} is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
