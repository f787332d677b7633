"""What was said in a chain of tokens: messages and tools, read back from what a template rendered.

For people and exports; nothing that is read here goes back into a chain. What a template puts
between two messages is found out by rendering some (`Frames`). A reading counts only if it renders
to the very text it was read from: a template that cannot be read so gives none, never a wrong one.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count, islice, pairwise
from typing import Any

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message
from prorl_service.schemas.pictures import parts_of, shown
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.formats import ToolCall, ToolSchema
from prorl_service.tokens.pictures import PLACEHOLDER
from prorl_service.tokens.probe import (
    CALL,
    as_result,
    assistant,
    call_id,
    ends_in_reasoning,
    reasoning,
    user,
)

ReadMessage = dict[str, Any]
"""A message in OpenAI's form, with the arguments of calls as an object, and content in parts if it
has pictures."""

_MARK = "4711-mark-%d"
_SCANNED = 1 << 18
"""Characters of a prompt that are searched for tools."""


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    messages: list[ReadMessage]
    tools: list[ToolSchema]


@dataclass(frozen=True, slots=True)
class _Frame:
    """Text before a content of role `to`: at the start, or after one of role `after`."""

    text: str
    after: str | None
    to: str


@dataclass(slots=True)
class Conversation:
    """What is known of a conversation beside its tokens, and ids for its calls, where the model
    gives none."""

    thinking: bool | None = None
    contents: Mapping[int, bytes] = field(default_factory=dict)
    """Pictures by the id of their tokens."""
    _next: Iterator[int] = field(default_factory=count)

    def ids(self, calls: Sequence[ToolCall]) -> list[str]:
        return [call.id or call_id(next(self._next)) for call in calls]


class ReplyReader:
    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._frames = lru_cache(maxsize=64)(self._learn)

    def prompt(self, prompt_ids: Sequence[int], known: Conversation) -> ReadPrompt | None:
        """Returns the conversation that a prompt holds; None if it cannot be told for certain."""
        text = self._text(prompt_ids)
        tools = _tools_in(text[:_SCANNED])
        for offered in (tools, []) if tools else ([],):
            said = self._said(text, None, offered, known.thinking)
            if said is None or not self._is_up_to_reply(said):
                continue
            messages = self._messages(said[:-1], offered, known)
            for one in (messages, [_without_ids(message) for message in messages]):
                if self._rendered(one, offered, known.thinking) == text:
                    seen = self._with_pictures(messages, prompt_ids, known.contents)
                    return None if seen is None else ReadPrompt(seen, offered)
        return None

    def between(
        self,
        context_ids: Sequence[int],
        *,
        after: int,
        calls: Sequence[tuple[str, str]],
        known: Conversation,
    ) -> list[ReadMessage] | None:
        """Returns the messages that answered a turn; None if they cannot be told for certain.

        `context_ids`: tokens up to the next turn; `after`: the turn's last; `calls`: id and name of
        each of its calls.
        """
        ends_turn = bool(context_ids) and context_ids[0] in self._chat.end_ids
        text = self._text(context_ids if ends_turn else [after, *context_ids])
        said = self._said(text, "assistant", [], known.thinking)
        if said is None or len(said) < 3 or said[0][1] or not self._is_up_to_reply(said):
            return None
        read = [{"role": role, "content": content} for role, content, _ in said[1:-1]]
        messages = self._with_pictures(read, context_ids, known.contents)
        if messages is None:
            return None
        results = [message for message in messages if message["role"] == "tool"]
        for result, (id_, name) in zip(results, calls, strict=False):
            result |= {"tool_call_id": id_, "name": name}
        return messages if self.is_rendered(messages, context_ids, after, known.thinking) else None

    def is_rendered(
        self,
        messages: Sequence[ReadMessage],
        context_ids: Sequence[int],
        after: int,
        thinking: bool | None,
    ) -> bool:
        """Returns whether these messages are what the tokens after a turn say."""
        for given in (messages, [_without_ids(message) for message in messages]):
            try:
                ids = self._chat.delta_ids(
                    [Message(**message) for message in given], after=after, thinking=thinking
                )
            except (InvalidRequest, ValueError):
                continue
            if ids == list(context_ids):
                return True
        return False

    def renders(self, messages: Sequence[ReadMessage], tools: Sequence[ToolSchema]) -> list[int]:
        """Returns ids of a finished conversation as trainers render it; none if it is refused."""
        try:
            ids = self._chat.encode(self._chat.text(messages, tools, generation=False))
            seen = [Message(**one) for one in messages if isinstance(one["content"], list)]
            return self._chat.expanded(ids, seen)
        except (InvalidRequest, ValueError):
            return []

    def _is_up_to_reply(self, said: Sequence[tuple[str, str, bool]]) -> bool:
        """Returns whether the assistant is to write next, and no content runs over a turn's end."""
        *before, (role, rest, _) = said
        runs_over = any(self._chat.next_end(content, 0) is not None for _, content, _ in before)
        return role == "assistant" and not rest and not runs_over

    def _text(self, ids: Sequence[int]) -> str:
        """Decodes all ids, with a placeholder for each picture. Decoding drops the token that ends
        a turn: here, one that is added."""
        if self._chat.pictures is not None:
            ids = self._chat.pictures.compact(ids)
        return self._chat.decode([*ids, self._chat.end_of_turn_id])

    def _rendered(
        self,
        messages: Sequence[ReadMessage],
        tools: Sequence[ToolSchema],
        thinking: bool | None,
    ) -> str | None:
        try:
            return self._chat.text(messages, tools, thinking)
        except InvalidRequest:
            return None

    def _messages(
        self,
        said: Sequence[tuple[str, str, bool]],
        tools: Sequence[ToolSchema],
        known: Conversation,
    ) -> list[ReadMessage]:
        messages: list[ReadMessage] = []
        open_calls: list[tuple[str, str]] = []
        for role, content, is_reasoning in said:
            message: ReadMessage = {"role": role, "content": content}
            if role == "assistant":
                reply = self._chat.replies.parse(content, tools, is_reasoning=is_reasoning)
                ids = known.ids(reply.calls)
                if reply.problem is None:
                    message = spoken(reply.content, reply.reasoning, reply.calls, ids)
                open_calls = [(id_, one.name) for id_, one in zip(ids, reply.calls, strict=True)]
            elif role == "tool" and open_calls:
                id_, name = open_calls.pop(0)
                message |= {"tool_call_id": id_, "name": name}
            messages.append(message)
        return messages

    def _with_pictures(
        self, messages: list[ReadMessage], ids: Sequence[int], contents: Mapping[int, bytes]
    ) -> list[ReadMessage] | None:
        """Returns messages with a chain's pictures in the place of placeholders, which no other
        text of the chain can spell; None if one is not known."""
        seen = [*shown(ids)]
        if not seen:
            return messages
        texts = [message["content"].split(PLACEHOLDER) for message in messages]
        places = sum(len(around) - 1 for around in texts)
        if self._chat.pictures is None or places != len(seen) or not contents.keys() >= {*seen}:
            return None
        waiting = (contents[id_] for id_ in seen)
        return [
            {**message, "content": parts_of(around, [*islice(waiting, len(around) - 1)])}
            for message, around in zip(messages, texts, strict=True)
        ]

    def _said(
        self,
        text: str,
        role: str | None,
        tools: Sequence[ToolSchema],
        thinking: bool | None,
    ) -> list[tuple[str, str, bool]] | None:
        """Returns role and content of each message, and whether it begins within reasoning; the
        last is the one that the model is to write. None: no conversation begins so.

        `role` of the content that the text is the end of; None: it is a whole conversation.
        """
        frames = self._frames(json.dumps(list(tools)), thinking)
        said: list[tuple[str, str, bool]] = []
        at, is_reasoning = 0, False
        if role is None:
            starts = [one for one in frames if one.after is None and text.startswith(one.text)]
            if not starts:
                return None
            start = max(starts, key=lambda one: len(one.text))
            at, role = len(start.text), start.to
        while True:
            found = [
                (place, -len(one.text), one)
                for one in frames
                if one.after == role and (place := text.find(one.text, at)) >= 0
            ]
            if not found:
                return [*said, (role, text[at:], is_reasoning)]
            place, _, frame = min(found, key=lambda one: one[:2])
            said.append((role, text[at:place], is_reasoning))
            at, role = place + len(frame.text), frame.to
            is_reasoning = role == "assistant" and ends_in_reasoning(frame.text)

    # --- what the template puts around messages -------------------------------------------------

    def _learn(self, tools: str, thinking: bool | None) -> list[_Frame]:
        """`tools`: JSON text, so that it can be a key."""
        schemas: list[ToolSchema] = json.loads(tools)
        frames = dict[_Frame, None]()
        for conversation in _conversations():
            for generation in (True, False):
                try:
                    text = self._chat.text(conversation, schemas, thinking, generation=generation)
                except InvalidRequest:
                    continue
                frames |= dict.fromkeys(self._between_marks(text, conversation, generation))
        return list(frames)

    def _between_marks(
        self, text: str, conversation: Sequence[ReadMessage], generation: bool
    ) -> Iterator[_Frame]:
        spans: list[tuple[int, int] | None] = []
        at = 0
        for number, message in enumerate(conversation):
            mark = _MARK % number
            start = text.find(mark, at)
            if start < 0:
                spans.append(None)
                continue
            stop = start + len(mark)
            if "tool_calls" in message:  # written around the mark: it ends with the turn
                end = self._chat.next_end(text, stop)
                stop = stop if end is None else end
            spans.append((start, stop))
            at = stop
        if spans and (first := spans[0]) is not None and "tool_calls" not in conversation[0]:
            yield _Frame(text[: first[0]], None, conversation[0]["role"])
        for (one, here), (other, there) in pairwise(zip(conversation, spans, strict=True)):
            if here is not None and there is not None and "tool_calls" not in other:
                yield _Frame(text[here[1] : there[0]], one["role"], other["role"])
        if generation and (last := spans[-1]) is not None:
            yield _Frame(text[last[1] :], conversation[-1]["role"], "assistant")


def spoken(
    content: str, thought: str, calls: Sequence[ToolCall], ids: Sequence[str]
) -> ReadMessage:
    """Returns an assistant's message."""
    message: ReadMessage = {"role": "assistant", "content": content}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [
            {
                "id": id_,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for id_, call in zip(ids, calls, strict=True)
        ]
    return message


def _without_ids(message: ReadMessage) -> ReadMessage:
    """Returns a result as agents give it whose calls have no id."""
    if message["role"] != "tool":
        return message
    return {"role": "tool", "content": message["content"]}


def _conversations() -> Iterator[list[ReadMessage]]:
    """Yields conversations with a mark in each message, so that every pair of roles occurs."""
    shapes = [
        "su", "u", "uu", "ssu", "sua", "ua", "uaua", "suauau", "uat", "uasu",
        "uc", "uct", "sucta", "uctau", "uctct", "uctu", "udtt", "udttau", "uctcta", "uauctau",
    ]  # fmt: skip
    for shape in shapes:
        for thought in (False, True):
            if not thought or "c" in shape or "a" in shape:
                yield [_marked(letter, n, thought) for n, letter in enumerate(shape)]


def _marked(letter: str, number: int, thought: bool) -> ReadMessage:
    mark = _MARK % number
    fields = reasoning("So be it.") if thought else {}
    call = ToolCall(CALL.name, {"word": mark})
    match letter:
        case "s":
            return {"role": "system", "content": mark}
        case "a":
            return assistant(content=mark, **fields)
        case "c":
            return assistant(call, **fields)
        case "d":
            return assistant(call, ToolCall(CALL.name, {"word": "b"}), **fields)
        case "t":
            return as_result({"role": "tool", "content": mark, "name": CALL.name})
    return user(mark)


def _tools_in(text: str) -> list[ToolSchema]:
    """Returns the tools that a prompt spells out as JSON."""
    tools: list[ToolSchema] = []
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            value, stop = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at = text.find("{", at + 1)
            continue
        if _is_tool(value.get("function")):
            tools.append(value)
        elif _is_tool(value):
            tools.append({"type": "function", "function": value})
        at = text.find("{", stop)
    return tools


def _is_tool(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and isinstance(value.get("parameters", {}), dict)
        and not {"parameters", "description"}.isdisjoint(value)
    )
