"""Formats with a name and a JSON object between special tokens: DeepSeek V3, V3.1, Kimi K2."""

import re

from prorl_service.tokens.formats.base import ToolCall, Types
from prorl_service.tokens.formats.tagged import Read, Tagged, consecutive
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


def _reader(call: str, inside: re.Pattern[str], form: str) -> Read:
    """Returns a reader of consecutive calls. `inside`: name and arguments of one."""

    def one(found: re.Match[str], _: Types) -> ToolCall | None:
        match = inside.fullmatch(found[1].strip())
        return match and ToolCall(match[1].strip(), read_object(match[2], "arguments"), _id(match))

    return consecutive(rf"\s*+{call}\s*+", form, one)


def _id(match: re.Match[str]) -> str | None:
    """Returns Kimi's id of a call, which stands before the arguments."""
    before, mark, _ = match[0].partition("<|tool_call_argument_begin|>")
    return before.strip() if mark else None


DEEPSEEK_V3 = Tagged(
    "deepseek-v3",
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    _reader(
        _DEEPSEEK_CALL,
        _DEEPSEEK_V3,
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME, a line ```json, the arguments, a line "
        "```, and <｜tool▁call▁end｜>",
    ),
    stray="<｜tool▁call▁begin｜>",
)
DEEPSEEK_V31 = Tagged(
    "deepseek-v3.1",
    DEEPSEEK_V3.tags,
    _reader(
        _DEEPSEEK_CALL,
        _DEEPSEEK_V31,
        "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>",
    ),
    stray="<｜tool▁call▁begin｜>",
)
KIMI = Tagged(
    "kimi-k2",
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    _reader(
        _KIMI_CALL,
        _KIMI,
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|>",
    ),
    stray=r"<\|tool_call_begin\|>",
)
