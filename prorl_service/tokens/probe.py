"""Probe of what a chat template does with conversations of agents, by having it render some.

Templates drop, refuse or rewrite what their authors did not think of: system messages after the
first, two calls in one reply, calls altogether. The findings are known when a model is loaded,
before anything is trained on it. Pure.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prorl_service.errors import InvalidRequest
from prorl_service.tokens.formats import (
    BY_NAME,
    Reply,
    ReplyFormat,
    ToolCall,
    ToolSchema,
    candidates,
)
from prorl_service.tokens.template import RenderedMessage, Template

Treatment = Literal["rendered", "dropped", "refused"]

TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up a word.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string"}, "times": {"type": "integer"}},
            "required": ["word"],
        },
    },
}
CALL = ToolCall("look_up", {"word": 'a "b"\n  c', "times": 3})
OTHER = ToolCall("look_up", {"word": "d"})
NO_TOOLS = "it shows the model no tools"
MARK = "4711-mark"
"""Text that no template contains."""


@dataclass(frozen=True, slots=True)
class Findings:
    format: ReplyFormat | None
    """The format in which the template writes calls; None if none reads them."""
    problem: str
    """Reason why agents with tools cannot use the template; "" if they can."""
    tools: Treatment
    parallel_calls: Treatment
    """Two calls in one reply."""
    tool_results: Treatment
    reasoning: Treatment
    """Reasoning of the assistant's last turn, given as a field of its message."""
    late_system: Treatment
    """A system message after the first user message."""
    leading_systems: Treatment
    """Two system messages at the start."""


def user(content: str = "Hi.") -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(*calls: ToolCall, content: str = "", **fields: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content, **fields}
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id or call_id(number),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for number, call in enumerate(calls)
        ]
    return message


def call_id(number: int) -> str:
    """Returns nine letters and digits, which Mistral's templates insist on."""
    return f"call{number:05d}"


def as_result(message: RenderedMessage, number: int = 0) -> dict[str, Any]:
    """Returns a message of role `tool` with the fields that templates may ask for."""
    return {"name": "tool", "tool_call_id": call_id(number), **message}


class ReplyProbe:
    def __init__(self, template: Template, special: re.Pattern[str], ends: Sequence[str]) -> None:
        """`special` matches special tokens; `ends` are those that end a turn."""
        self._template, self._special = template, special
        self._ends = re.compile("|".join(map(re.escape, ends)) or r"(?!)")

    def findings(self, formats: Sequence[ReplyFormat] | None = None) -> Findings:
        """`formats`: those to try; None: those that the template may print.

        Sets the template's `arguments_as_text` to what it takes.
        """
        formats = candidates(self._template.source) if formats is None else formats
        system = {"role": "system", "content": MARK}
        answered = [user(), assistant(content="Yes."), system, user()]
        thought = assistant(CALL, **reasoning(MARK))
        chosen, problem = self._format(formats)
        return Findings(
            format=chosen,
            problem=problem,
            tools=self._treats([user()], "look_up", tools=[TOOL]),
            parallel_calls=self._parallel(chosen),
            tool_results=self._treats([user(), assistant(CALL), _result(MARK)]),
            reasoning=self._treats([user(), thought, _result("3")]),
            late_system=self._treats(answered),
            leading_systems=self._treats([{"role": "system", "content": "A."}, system, user()]),
        )

    def _treats(
        self,
        messages: Sequence[RenderedMessage],
        expected: str = MARK,
        tools: Sequence[ToolSchema] = (),
    ) -> Treatment:
        try:
            text = self._template.render(messages, tools)
        except InvalidRequest:
            return "refused"
        return "rendered" if expected in text else "dropped"

    def _format(self, formats: Sequence[ReplyFormat]) -> tuple[ReplyFormat | None, str]:
        shown = self._treats([user()], "look_up", tools=[TOOL]) == "rendered"
        problems = []
        for as_text in (False, True):
            self._template.arguments_as_text = as_text
            for one in formats:
                if (problem := self._misread(one, [CALL])) is None:
                    return one, "" if shown else NO_TOOLS
                problems.append(f"{one.name}: {problem}")
        self._template.arguments_as_text = False
        if not shown:
            return None, NO_TOOLS
        known = ", ".join(sorted(one.name for one in BY_NAME.values() if one.has_calls))
        return None, "; ".join(
            dict.fromkeys(problems)
        ) or f"its calls fit none of the formats ({known})"

    def _parallel(self, chosen: ReplyFormat | None) -> Treatment:
        if chosen is None or self._treats([user(), assistant(CALL, OTHER)], "look_up") == "refused":
            return "refused"
        return "dropped" if self._misread(chosen, [CALL, OTHER]) else "rendered"

    def _misread(self, one: ReplyFormat, calls: Sequence[ToolCall]) -> str | None:
        """Reads back calls that the template writes. Returns what is wrong, or None."""
        try:
            text, is_reasoning = self.rendered_reply(assistant(*calls))
        except InvalidRequest as error:
            return error.message
        reply = one.parse(text, [TOOL], is_reasoning=is_reasoning)
        if reply.problem is not None:
            return reply.problem.message
        read = [(call.name, call.arguments) for call in reply.calls]
        if read == [(call.name, call.arguments) for call in calls]:
            return None
        return f"a call is read as {_described(reply)}"

    def rendered_reply(self, message: RenderedMessage) -> tuple[str, bool]:
        """Returns what the model would sample to say this, and whether it begins in reasoning.
        Raises `InvalidRequest`."""
        prompt = self._template.render([user()], [TOOL])
        whole = self._template.render([user(), message], [TOOL], generation=False)
        start = self._shared(prompt, whole)
        end = self._ends.search(whole, start)
        is_reasoning = ends_in_reasoning(whole[:start])
        return whole[start : end.start() if end else len(whole)], is_reasoning

    def _shared(self, prompt: str, whole: str) -> int:
        """Returns the start of the reply: after the prompt or, if the template does not continue it
        as it is, after the last special token that both have."""
        if whole.startswith(prompt):
            return len(prompt)
        same = next(n for n, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b)
        return max((m.end() for m in self._special.finditer(prompt) if m.end() <= same), default=0)


def reasoning(text: str) -> dict[str, str]:
    """Returns it under each name that templates have for it."""
    return {"reasoning_content": text, "reasoning": text, "thinking": text}


_OPENINGS = ("<think>", "[THINK]", "<|channel>thought")


def ends_in_reasoning(prompt: str) -> bool:
    return prompt.rstrip().endswith(_OPENINGS)


def _result(content: str) -> dict[str, Any]:
    return as_result({"role": "tool", "content": content, "name": CALL.name})


def _described(reply: Reply) -> str:
    return ", ".join(f"{call.name}({call.arguments})" for call in reply.calls) or "text"
