"""Formats with a name and a JSON object between special tokens: DeepSeek V3, V3.1, Kimi K2."""

import re
from collections.abc import Callable

from prorl_service.tokens.formats.base import Malformed, ToolCall, Types
from prorl_service.tokens.formats.tagged import Tagged
from prorl_service.tokens.formats.values import read_object

_ANY = r"((?:(?!{})[\s\S])*+)"
"""Pattern of text up to the tag that it is formatted with."""


def _until(tag: str) -> str:
    return _ANY.format(tag) + tag


_DEEPSEEK_CALL = "<｜tool▁call▁begin｜>" + _until("<｜tool▁call▁end｜>")
_DEEPSEEK_V3 = re.compile(r"function<｜tool▁sep｜>([^\n]++)\n```json\n([\s\S]*)\n```")
_DEEPSEEK_V31 = re.compile(r"([^<\n]++)<｜tool▁sep｜>([\s\S]*)")
_KIMI_CALL = r"<\|tool_call_begin\|>" + _until(r"<\|tool_call_end\|>")
_KIMI = re.compile(
    r"\s*(?:functions\.)?([^:\s]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>([\s\S]*)"
)


def _reader(
    call: str, form: str, one: Callable[[str], ToolCall | None]
) -> Callable[[str, Types], list[ToolCall]]:
    """Returns a reader of consecutive calls. `one`: reads the inside of a call, or returns None."""
    calls = re.compile(rf"\s*+{call}\s*+")

    def read(body: str, _: Types) -> list[ToolCall]:
        found: list[ToolCall] = []
        end = 0
        while end < len(body) or not found:
            match = calls.match(body, end)
            read_one = match and one(match[1])
            if not match or not read_one:
                raise Malformed(f"the tool call must be written as {form}", end)
            found.append(read_one)
            end = match.end()
        return found

    return read


def _deepseek_v3(text: str) -> ToolCall | None:
    match = _DEEPSEEK_V3.fullmatch(text.strip())
    return match and ToolCall(match[1].strip(), read_object(match[2], "arguments"))


def _deepseek_v31(text: str) -> ToolCall | None:
    match = _DEEPSEEK_V31.fullmatch(text.strip())
    return match and ToolCall(match[1].strip(), read_object(match[2], "arguments"))


def _kimi(text: str) -> ToolCall | None:
    match = _KIMI.fullmatch(text)
    if match is None:
        return None
    id_ = text.partition("<|tool_call_argument_begin|>")[0].strip()
    return ToolCall(match[1], read_object(match[2], "arguments"), id_)


DEEPSEEK_V3 = Tagged(
    "deepseek-v3",
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    _reader(
        _DEEPSEEK_CALL,
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME, a line ```json, the arguments, a line "
        "```, and <｜tool▁call▁end｜>",
        _deepseek_v3,
    ),
    stray="<｜tool▁call▁begin｜>",
)
DEEPSEEK_V31 = Tagged(
    "deepseek-v3.1",
    DEEPSEEK_V3.tags,
    _reader(
        _DEEPSEEK_CALL,
        "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>",
        _deepseek_v31,
    ),
    stray="<｜tool▁call▁begin｜>",
)
KIMI = Tagged(
    "kimi-k2",
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    _reader(
        _KIMI_CALL,
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|>",
        _kimi,
    ),
    stray=r"<\|tool_call_begin\|>",
)
