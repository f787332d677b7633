"""Formats of most families: reasoning between tags, then text, and calls between tags. Pure.

Families differ in the text between the tags of calls.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from prorl_service.tokens.formats.base import (
    BrokenCall,
    Malformed,
    Problem,
    Reply,
    ToolCall,
    ToolSchema,
    Types,
    types_of,
)

THINK = ("<think>", "</think>")

Range = tuple[int, int]
Read = Callable[[str, Types], list[ToolCall]]

_MASK = "\0"
"""Character that replaces reasoning, so that the rest keeps its place."""


@dataclass(frozen=True)
class Tagged:
    name: str
    tags: tuple[str, str]
    """Tags around calls."""
    read: Read
    """Reader of the calls between a pair of tags. Raises `Malformed`."""
    body: str | None = None
    """Linear regular expression for the text between the tags of a well-formed call, if its format
    tells tags from text; otherwise a call ends at the first closing tag."""
    stray: str = r"(?!)"
    """Regular expression for text that, like the tags, must not be outside a call."""
    thinking: tuple[str, str] = THINK
    """Tags around reasoning."""
    has_calls: bool = True

    def parse(
        self, text: str, tools: Sequence[ToolSchema] = (), *, is_reasoning: bool = False
    ) -> Reply:
        masked, reasoning, still_since = self._without_reasoning(text, is_reasoning)
        if still_since is not None:
            message = f"the reasoning was not closed with {self.thinking[1]}"
            problem = Problem(message, still_since, len(text))
            thought = text[still_since:].removeprefix(self.thinking[0]).strip()
            return Reply("", thought, problem=problem)
        outside, bodies = self._without_calls(masked)
        content = "".join(masked[start:stop] for start, stop in outside).replace(_MASK, "")
        if (stray := self._first_stray(masked, outside)) is not None:
            return Reply(content, reasoning, problem=stray)
        calls, types = [], types_of(tools)
        for start, stop in bodies:
            try:
                calls += self.read(text[start:stop], types)
            except Malformed as error:
                end = stop if error.stop is None else start + error.stop
                problem = Problem(str(error), start + error.start, end)
                attempts = self._attempts([text[slice(*one)] for one in bodies], types)
                return Reply(content, reasoning, problem=problem, attempts=attempts)
        return Reply(content.strip(), reasoning, calls)

    def _attempts(self, bodies: Sequence[str], types: Types) -> list[ToolCall | BrokenCall]:
        attempts: list[ToolCall | BrokenCall] = []
        for body in bodies:
            try:
                attempts += self.read(body, types)
            except Malformed:
                if (broken := broken_call(body, self.tags)) is not None:
                    attempts.append(broken)
        return attempts

    @cached_property
    def _stray(self) -> re.Pattern[str]:
        return re.compile("|".join([*map(re.escape, self.tags), self.stray]))

    @cached_property
    def _call(self) -> re.Pattern[str] | None:
        opening, closing = map(re.escape, self.tags)
        return None if self.body is None else re.compile(f"{opening}{self.body}{closing}")

    @cached_property
    def _thoughts_and_calls(self) -> re.Pattern[str]:
        opening, closing = map(re.escape, self.thinking)
        return re.compile(rf"{opening}|{closing}(?:\s*+{closing})*+|{re.escape(self.tags[0])}")

    def _without_reasoning(self, text: str, is_reasoning: bool) -> tuple[str, str, int | None]:
        """Returns the text with its reasoning masked, the reasoning, and the start of reasoning
        that does not end.

        The opening tag may be part of the prompt, so the first closing tag ends reasoning without
        one as well; a later closing tag without one is text, and so are tags in strings of a call.
        """
        opening, closing = self.thinking
        pieces: list[str] = []
        thoughts: list[str] = []
        start, since, has_reasoned = 0, 0 if is_reasoning else None, False
        at = 0
        last_call = text.rfind(self.tags[1])
        while (tag := self._thoughts_and_calls.search(text, at)) is not None:
            at = tag.end()
            if tag[0] == self.tags[0]:
                if tag.start() < last_call:
                    at = max(at, self._end_of_call(text, tag.start(), since is not None))
            elif tag[0] == opening and since is None:
                pieces.append(text[start : tag.start()])
                since = tag.start()
            elif tag[0].startswith(closing) and (since is not None or not has_reasoned):
                begin = since or 0
                thoughts.append(text[begin : tag.start()].removeprefix(opening).strip())
                pieces.append(_MASK * (tag.end() - begin))
                start, since, has_reasoned = tag.end(), None, True
        return "".join([*pieces, text[start:]]), "\n".join(thoughts), since

    def _end_of_call(self, text: str, start: int, in_reasoning: bool) -> int:
        """Returns the end of a call, in which tags are text; `start` or less if there is none.

        In reasoning only a well-formed call is one.
        """
        if self._call is not None:
            call = self._call.match(text, start)
            return call.end() if call else -1
        return -1 if in_reasoning else text.find(self.tags[1], start)

    def _without_calls(self, text: str) -> tuple[list[Range], list[Range]]:
        """Returns the ranges of text outside calls, which include unpaired tags, and the inside of
        each call."""
        opening, closing = self.tags
        outside, bodies, end = [], [], 0
        while (start := text.find(opening, end)) >= 0 and (stop := self._closing(text, start)) >= 0:
            outside.append((end, start))
            bodies.append((start + len(opening), stop))
            end = stop + len(closing)
        return [*outside, (end, len(text))], bodies

    def _closing(self, text: str, start: int) -> int:
        """Returns the index of the tag that closes the call at `start`; negative without one."""
        call = self._call and self._call.match(text, start)
        closing = self.tags[1]
        return call.end() - len(closing) if call else text.find(closing, start)

    def _first_stray(self, text: str, outside: Sequence[Range]) -> Problem | None:
        for start, stop in outside:
            if (tag := self._stray.search(text, start, stop)) is not None:
                message = f"{self.tags[0]} and {self.tags[1]} do not pair up"
                if tag[0] not in self.tags:
                    message = f"a tool call must stand between {self.tags[0]} and {self.tags[1]}"
                return Problem(message, tag.start(), tag.end())
        return None


_NAMES = (
    re.compile(r'"name"\s*+:\s*+"([^"\\\n]++)"'),
    re.compile(r"<function=([^>\n]++)>"),
    re.compile(r'<invoke name="([^"\n]++)">'),
)
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*+:\s*+')


def consecutive(
    pattern: str, form: str, one: Callable[[re.Match[str], Types], ToolCall | None]
) -> Read:
    """Returns a reader of one or more calls in a row. `one`: reads a match of `pattern`, or returns
    None; `form` shows how a call is written."""
    calls = re.compile(pattern)

    def read(body: str, types: Types) -> list[ToolCall]:
        found: list[ToolCall] = []
        end = 0
        while end < len(body) or not found:
            match = calls.match(body, end)
            call = match and one(match, types)
            if not match or not call:
                raise Malformed(f"the tool call must be written as {form}", end)
            found.append(call)
            end = match.end()
        return found

    return read


def broken_call(body: str, tags: tuple[str, str]) -> BrokenCall | None:
    """Returns what can be told of the text of a call between its tags; None if no tool is named."""
    for pattern in _NAMES:
        if (name := pattern.search(body)) is not None:
            break
    else:
        return None
    arguments = body[name.end() :]
    if pattern is _NAMES[0]:
        arguments = _json_arguments(body)
    return BrokenCall(name[1].strip(), arguments.strip(), body.join(tags))


def _json_arguments(body: str) -> str:
    """Returns the text after the arguments' key, without the brace that closes the call."""
    key = _ARGUMENTS.search(body)
    if key is None:
        return ""
    return body[key.end() :].rstrip().removesuffix("}")
