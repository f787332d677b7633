"""The messages of each segment of a rollout.

A rollout has the text of its turns; its prompt and the answers to turns are stored as tokens. They
are read back with the model's tokenizer; without it, only the task's own messages and the tools'
outputs are known. Text of agents and tools stays as the policy saw it, with special tokens broken,
so that it cannot fake a turn when it is rendered again.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from prorl_service.agents.base import Prompt
from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message, Rollout, Segment, Task, ToolCallRecord, Trajectory, Turn
from prorl_service.schemas.pictures import parts_of
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.formats import ToolSchema
from prorl_service.tokens.messages import defused
from prorl_service.tokens.reading import (
    Conversation,
    ReadMessage,
    ReadPrompt,
    ReplyReader,
    spoken,
)

PromptOf = Callable[[Task], Prompt | None]
"""Function that returns the prompt of a task's agent; None if the agent is not available here."""

CALL_LIMIT = 512
"""Most calls read from one turn; hostile text can spell any number."""


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """A rollout to be exported, with its task."""

    rollout: Rollout
    task: Task | None = None
    """The rollout's task; None if the source has only rollouts."""


@dataclass(frozen=True, slots=True)
class Said:
    """A turn, and the answers to it within the segment."""

    turn: Turn
    message: ReadMessage
    """The assistant's message, with calls if a tokenizer was available to read them."""
    answers: list[ReadMessage]
    context_ids: list[int]
    """Tokens between the previous turn, or the prompt, and this turn."""


@dataclass(frozen=True, slots=True)
class Transcript:
    segment: int
    said: list[Said]
    prompt: list[ReadMessage] | None = None
    """Messages before the first turn; None if their text is unknown."""
    prompt_from: Literal["tokens", "task"] | None = None
    """Source of the prompt: "tokens" is what the policy saw; "task" is the task's own messages, to
    which the agent may have added a system prompt and tools."""
    tools: list[ToolSchema] = field(default_factory=list)
    is_whole: bool = False
    """True if every message is known to be what the policy saw."""

    @property
    def messages(self) -> list[ReadMessage]:
        turns = [message for one in self.said for message in (one.message, *one.answers)]
        return [*(self.prompt or []), *turns]


class Transcriber:
    def __init__(
        self, chat: ChatFormat | None = None, prompt_of: PromptOf = lambda _: None
    ) -> None:
        """`chat` is the format of the rollouts' model; without it, the tokens are not read."""
        self.chat = chat
        self.reader = None if chat is None else ReplyReader(chat)
        self._prompt_of = prompt_of

    def transcripts(self, record: ExportRecord) -> list[Transcript]:
        """Returns a transcript for each segment."""
        trajectory = record.rollout.trajectory
        if trajectory is None:
            return []
        contents = trajectory.contents()
        return [
            self._of(
                record, trajectory, index, Conversation(trajectory.sampling.thinking, contents)
            )
            for index in range(len(trajectory.segments))
        ]

    def _of(
        self, record: ExportRecord, trajectory: Trajectory, index: int, known: Conversation
    ) -> Transcript:
        segment = trajectory.segments[index]
        turns = sorted(
            (turn for turn in trajectory.turns if turn.segment == index), key=lambda one: one.start
        )
        if self.reader is None or self.chat is None:
            task = record.task if index == 0 else None
            return Transcript(
                index,
                [_as_recorded(turn, _context(segment, turns, n)) for n, turn in enumerate(turns)],
                prompt=None if task is None else _plain(task.messages),
                prompt_from=None if task is None else "task",
            )
        prompt = self._prompt(record.task, segment, known)
        tools = prompt.tools if prompt is not None else []
        said, is_whole = [], prompt is not None
        for n, turn in enumerate(turns):
            before = segment.prompt_ids + segment.response_ids[: turn.start]
            message = self._message(turn, before, tools, known)
            answers: list[ReadMessage] | None = []
            if n + 1 < len(turns):
                between = segment.response_ids[turn.stop : turns[n + 1].start]
                answers = self._answers(turn, message, between, segment, known)
            is_whole &= answers is not None
            if answers is None:
                answers = [self._defused(one) for one in _results(turn, message)]
            said.append(Said(turn, message, answers, _context(segment, turns, n)))
        if prompt is None:
            return Transcript(index, said)
        return Transcript(index, said, prompt.messages, "tokens", tools, is_whole)

    def _prompt(
        self, task: Task | None, segment: Segment, known: Conversation
    ) -> ReadPrompt | None:
        """Prefers the agent's own prompt, if the policy saw it: its tools are apart from text."""
        assert self.chat is not None
        assert self.reader is not None
        made = None if task is None else self._prompt_of(task)
        if made is not None:
            try:
                ids = self.chat.prompt_ids(made.messages, tools=made.tools, thinking=known.thinking)
            except InvalidRequest:
                ids = []
            if ids == segment.prompt_ids:
                messages = [self._defused(one) for one in _plain(made.messages)]
                return ReadPrompt(messages, list(made.tools))
        return self.reader.prompt(segment.prompt_ids, known)

    def _message(
        self, turn: Turn, before: Sequence[int], tools: Sequence[ToolSchema], known: Conversation
    ) -> ReadMessage:
        assert self.chat is not None
        reply = self.chat.read(turn.text, before, tools)
        if reply.problem is not None or turn.format_error or len(reply.calls) > CALL_LIMIT:
            return {"role": "assistant", "content": turn.text}
        return spoken(reply.content, reply.reasoning, reply.calls, known.ids(reply.calls))

    def _answers(
        self,
        turn: Turn,
        message: ReadMessage,
        between: Sequence[int],
        segment: Segment,
        known: Conversation,
    ) -> list[ReadMessage] | None:
        """Returns the messages that answer `turn`, or None if they cannot be read for certain."""
        assert self.reader is not None
        after = segment.response_ids[turn.stop - 1]
        results = _results(turn, message)
        if results and self.reader.is_rendered(results, between, after, known.thinking):
            return [self._defused(one) for one in results]
        calls = [(call["id"], call["function"]["name"]) for call in message.get("tool_calls", ())]
        return self.reader.between(between, after=after, calls=calls, known=known)

    def _defused(self, message: ReadMessage) -> ReadMessage:
        assert self.chat is not None
        return {**message, "content": defused(message["content"], self.chat.defuse)}


def _context(segment: Segment, turns: Sequence[Turn], index: int) -> list[int]:
    start = turns[index - 1].stop if index else 0
    return segment.response_ids[start : turns[index].start]


def _as_recorded(turn: Turn, context_ids: list[int]) -> Said:
    message = {"role": "assistant", "content": turn.text}
    return Said(turn, message, _results(turn, message), context_ids)


def _results(turn: Turn, message: ReadMessage) -> list[ReadMessage]:
    """Returns the answers as `agents.loop` words them."""
    if turn.format_error:
        return [{"role": "tool", "content": f"Format error: {turn.format_error}."}]
    ids = [call["id"] for call in message.get("tool_calls", ())]
    ids += [""] * (len(turn.tool_calls) - len(ids))
    return [_result(call, id_) for call, id_ in zip(turn.tool_calls, ids, strict=False)]


def output_of(call: ToolCallRecord) -> str | list[dict[str, Any]]:
    """Returns a call's output with its pictures behind it, as a message's content."""
    contents = [base64.b64decode(one) for one in call.pictures]
    return parts_of([call.output, *("" for _ in contents)], contents)


def _result(call: ToolCallRecord, id_: str) -> ReadMessage:
    result: ReadMessage = {"role": "tool", "content": output_of(call), "name": call.name}
    return {**result, "tool_call_id": id_} if id_ else result


def _plain(messages: Sequence[Message]) -> list[ReadMessage]:
    left_out = {"content", "pictures"}
    dumped = [
        {"content": message.parts, **message.model_dump(exclude_none=True, exclude=left_out)}
        for message in messages
    ]
    return [{key: one for key, one in message.items() if one != []} for message in dumped]
