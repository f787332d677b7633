"""Replies of a model, and the interface behind which model families differ. Pure.

A format only reads: it repairs nothing, and what it reads is never written back into a chain of
tokens. One malformed call voids the reply, so that a reply is never half obeyed. The problem is
worded for the model to read and learn from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

ToolSchema = dict[str, Any]
"""A tool as OpenAI clients and chat templates know it."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]
    id: str | None = None
    """The model's own id of the call, in formats that have one."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Fault in `text[start:stop]` of a reply."""

    message: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class BrokenCall:
    """A call that breaks its format, but whose tool can be told."""

    name: str
    arguments: str
    """Text of the arguments, as it was sampled."""
    written: str
    """Text of the whole call, as it was sampled."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Parsed reply. `content` is text outside reasoning and calls; a `problem` voids `calls`."""

    content: str
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    problem: Problem | None = None
    attempts: list[ToolCall | BrokenCall] = field(default_factory=list)
    """Calls of a reply with a problem, in order, as far as they can be told."""


class ReplyFormat(Protocol):
    """Format in which one family of models writes reasoning and tool calls."""

    @property
    def name(self) -> str:
        """Value for `--reply-format`."""

    @property
    def has_calls(self) -> bool: ...

    def parse(
        self, text: str, tools: Sequence[ToolSchema] = (), *, is_reasoning: bool = False
    ) -> Reply:
        """Reads a sampled turn, without the token that ended it.

        `tools`: those that were offered; their schemas tell text from numbers where the format does
        not. `is_reasoning`: the prompt ended within reasoning. Never raises; O(len(text)).
        """


class Malformed(Exception):
    """A call that breaks its format; `start:stop` are relative to what was read."""

    def __init__(self, message: str, start: int = 0, stop: int | None = None) -> None:
        super().__init__(message)
        self.start, self.stop = start, stop


Types = Mapping[str, Mapping[str, Any]]
"""JSON schemas of arguments, by tool and argument."""


def types_of(tools: Sequence[ToolSchema]) -> Types:
    functions = [tool.get("function", tool) for tool in tools]
    return {
        function["name"]: function.get("parameters", {}).get("properties", {})
        for function in functions
    }
