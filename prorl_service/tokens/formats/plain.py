"""Format for models whose calls no other format reads: reasoning is known, calls are not. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from prorl_service.tokens.formats.base import Problem, Reply, ToolSchema
from prorl_service.tokens.formats.tagged import THINK


@dataclass(frozen=True)
class Plain:
    name: str = "plain"
    has_calls: bool = False

    def parse(
        self, text: str, tools: Sequence[ToolSchema] = (), *, is_reasoning: bool = False
    ) -> Reply:
        opening, closing = THINK
        start = len(text) - len(text.lstrip())
        if not is_reasoning and not text.startswith(opening, start):
            return Reply(text.strip())
        reasoning, tag, content = text.partition(closing)
        if not tag:
            problem = Problem("the reasoning was not closed with </think>", start, len(text))
            return Reply("", reasoning.strip(), problem=problem)
        return Reply(content.strip(), reasoning.strip().removeprefix(opening).strip())


PLAIN = Plain()
