"""Gemma 4: `<|tool_call>call:NAME{KEY:VALUE,...}<tool_call|>`, and reasoning on a channel.

Values are JSON, except that strings stand between `<|"|>` and that keys may be bare.
"""

import re
from typing import Any

from prorl_service.tokens.formats.base import Malformed, ToolCall, Types
from prorl_service.tokens.formats.tagged import Tagged
from prorl_service.tokens.formats.values import MAX_DEPTH, checked

_HEAD = re.compile(r"\s*+call:([^\s{]++)\s*+(?=\{)")
_STRING = re.compile(r'<\|"\|>((?:(?!<\|"\|>)[\s\S])*+)<\|"\|>')
_KEY = re.compile(r"[^\s:,{}\[\]]++")
_NUMBER = re.compile(r"-?\d++(\.\d++)?(?:[eE][-+]?\d++)?")
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile("true|false|null")
_SPACE = re.compile(r"\s*+")


class _ValueReader:
    """Reader of a call's values. Raises `Malformed`."""

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at

    def value(self, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise Malformed(f"the tool call is nested too deeply: over {MAX_DEPTH} levels", self.at)
        self._skip()
        if self._next("{"):
            return self._object(depth)
        if self._next("["):
            return self._list(depth)
        if (string := self._match(_STRING)) is not None:
            return string[1]
        if (number := self._match(_NUMBER)) is not None:
            is_integer = number[0].lstrip("-").isdigit()
            return int(number[0]) if is_integer and len(number[0]) < 4000 else float(number[0])
        if (word := self._match(_WORD)) is not None:
            return _WORDS[word[0]]
        raise self._error("a value")

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self._next("}"):
            if found:
                self._expect(",")
            self._skip()
            if (quoted := self._match(_STRING)) is not None:
                key = quoted[1]
            elif (bare := self._match(_KEY)) is not None:
                key = bare[0]
            else:
                raise self._error("a key")
            self._expect(":")
            found[key] = self.value(depth + 1)
        return found

    def _list(self, depth: int) -> list[Any]:
        found: list[Any] = []
        while not self._next("]"):
            if found:
                self._expect(",")
            found.append(self.value(depth + 1))
        return found

    def _skip(self) -> None:
        space = _SPACE.match(self.text, self.at)
        assert space is not None
        self.at = space.end()

    def _next(self, char: str) -> bool:
        self._skip()
        found = self.text.startswith(char, self.at)
        self.at += found
        return found

    def _expect(self, char: str) -> None:
        if not self._next(char):
            raise self._error(repr(char))

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match

    def _error(self, wanted: str) -> Malformed:
        seen = self.text[self.at : self.at + 20]
        return Malformed(f"the tool call needs {wanted} before {seen!r}", self.at)


def _read(body: str, _: Types) -> list[ToolCall]:
    head = _HEAD.match(body)
    if head is None:
        raise Malformed("the tool call must be written as call:NAME{KEY:VALUE}")
    reader = _ValueReader(body, head.end())
    arguments = checked(reader.value())
    if rest := body[reader.at :].strip():
        raise Malformed(f"nothing may follow the arguments, not {rest[:40]!r}", reader.at)
    return [ToolCall(head[1], arguments)]


GEMMA = Tagged(
    "gemma-4",
    ("<|tool_call>", "<tool_call|>"),
    _read,
    thinking=("<|channel>thought\n", "<channel|>"),
)
