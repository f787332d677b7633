"""Harmony, which gpt-oss speaks: a reply is messages, each on a channel.

`analysis` is reasoning, `final` the answer, and a message to `functions.NAME` a call. The prompt
ends with the head of the first message, `<|start|>assistant`; the last message may lack its end,
which is the token that ends the turn. See "OpenAI Harmony Response Format", OpenAI Cookbook, 2025.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from prorl_service.tokens.formats.base import Malformed, Problem, Reply, ToolCall, ToolSchema
from prorl_service.tokens.formats.values import read_object

_START = "<|start|>assistant"
_MESSAGE = re.compile(
    r"((?:(?!<\|message\|>|<\|start\|>)[\s\S])*+)<\|message\|>"
    r"((?:(?!<\|(?:start|end|call|return|message)\|>)[\s\S])*+)"
    r"(?:<\|(?:end|call|return)\|>)?"
)
_CHANNEL = re.compile(r"<\|channel\|>\s*+(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]++)")
_MESSAGES = "a reply must be messages: <|channel|>NAME<|message|>TEXT<|end|>"


@dataclass(frozen=True)
class Harmony:
    name: str = "harmony"
    has_calls: bool = True

    def parse(
        self, text: str, tools: Sequence[ToolSchema] = (), *, is_reasoning: bool = False
    ) -> Reply:
        said: dict[str, list[str]] = {"analysis": [], "commentary": [], "final": []}
        calls: list[ToolCall] = []
        end, problem = 0, None
        while (end < len(text) or not end) and problem is None:
            message = _MESSAGE.match(text, end + len(_START) * text.startswith(_START, end))
            if message is None:
                problem = Problem(_MESSAGES, end, len(text))
                break
            start, end = end, message.end()
            try:
                call = _read(message, said)
            except Malformed as error:
                problem = Problem(str(error), start, end)
            else:
                calls += [call] if call else []
        content = "\n".join([*said["commentary"], *said["final"]]).strip()
        reasoning = "\n".join(said["analysis"]).strip()
        if problem is None and not (calls or said["final"]):
            problem = Problem("the reply has no message on the channel final", 0, len(text))
        return Reply(content, reasoning, [] if problem else calls, problem)


def _read(message: re.Match[str], said: dict[str, list[str]]) -> ToolCall | None:
    """Returns the call that a message is; otherwise adds its text to what was said."""
    channel, recipient = _CHANNEL.search(message[1]), _RECIPIENT.search(message[1])
    if recipient is not None:
        if not recipient[1].startswith("functions."):
            raise Malformed(f"there is no {recipient[1]}: tools are called as functions.NAME")
        return ToolCall(
            recipient[1].removeprefix("functions."), read_object(message[2], "the arguments")
        )
    if channel is None or channel[1] not in said:
        raise Malformed("a message must be on the channel analysis, commentary or final")
    said[channel[1]].append(message[2])
    return None


HARMONY = Harmony()
