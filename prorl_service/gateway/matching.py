"""Which turn of the rollout a request continues. Pure; knows no tokens.

A request holds the whole conversation so far, as the harness tells it. Few harnesses tell it byte
for byte; nearly all keep the ids that they were given. So a turn of the model is known by the ids
that the gateway minted for its calls, or by the text of a reply without calls; its reasoning, the
names and arguments of its calls and the text beside them are not compared. Everything else is
compared as it is. Where a whole conversation is known up to a turn, and only results and questions
follow, the request continues that turn.

A wrong match could only show the policy its own words where the harness restated them: what the
engine gets is what the ledger records, whatever is decided here.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson
from pydantic import JsonValue

from prorl_service.gateway.calls import CallReply, CallRequest, Said
from prorl_service.schemas import Message
from prorl_service.tokens.formats import ToolSchema

Digest = bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands."""

    turn: int | None
    """Number of the turn that it continues; None: none, the whole conversation is new."""
    rest: Sequence[Message]
    """Messages that follow that turn, or all of them."""
    digest: Digest
    """Digest of the conversation, with the tools."""
    restated: tuple[int, ...] = ()
    """Numbers of the turns that were echoed back with changes."""
    tools: Digest = b""
    """Digest of the tools; empty without any."""
    system: Digest = b""
    """Digest of the system prompt."""
    quoted: tuple[int, ...] = ()
    """Numbers of the turns whose replies the conversation holds, in its order."""
    asked_again: tuple[int, ...] = ()
    """Numbers of the turns that it holds the request of, but not the reply."""


@dataclass(slots=True)
class _Turn:
    """A turn as it was handed out."""

    number: int
    call_ids: tuple[str, ...]
    text: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    """Names and arguments."""


@dataclass(slots=True)
class Conversations:
    """All conversations of one rollout: that of the agent, of its sub-agents, for titles, …"""

    is_strict: bool = False
    """Whether a turn that is echoed back with changes counts as another."""

    _turns: dict[Digest, int] = field(default_factory=dict)
    """Turns by the digest of all that was said up to their end."""
    _by_call: dict[str, _Turn] = field(default_factory=dict)
    _by_number: dict[int, _Turn] = field(default_factory=dict)
    _by_text: dict[str, int] = field(default_factory=dict)
    """Newest turns by their text."""
    _requests: dict[Digest, int] = field(default_factory=dict)
    """Newest turns by the digest of their requests."""

    def place(self, request: CallRequest) -> Place:
        said = _in_order(request.conversation, self._by_call)
        digest = _head(request.tools)
        found: tuple[int, int] | None = None
        restated = []
        tools = digest if request.tools else b""
        system, quoted, asked_again = b"", list[int](), []
        for number, one in enumerate(said):
            if one.message.role == "system" and number == 0:
                system = _with(b"", orjson.dumps(one.message.content))
            digest = _with(digest, self._key(one))
            if (asked := self._requests.get(digest)) is not None and _is_unanswered(said, number):
                asked_again.append(asked)
            if one.message.role == "assistant":
                quoted += self._known(one)
            if (turn := self._turns.get(digest)) is not None:
                found = (turn, number + 1)
                if _is_restated(one, self._by_number[turn]):
                    restated.append(turn)
        messages = [one.message for one in said]
        marks = (tuple(restated), tools, system, tuple(quoted), tuple(asked_again))
        if found is not None:
            turn, length = found
            rest = messages[length:]
            if rest and all(message.role != "assistant" for message in rest):
                return Place(turn, rest, digest, *marks)
        return Place(None, messages, digest, *marks)

    def add(self, place: Place, number: int, reply: CallReply) -> None:
        """Enters the turn `number` that answered the request at `place`."""
        turn = _Turn(
            number,
            tuple(call.id for call in reply.calls),
            reply.text.strip(),
            reply.reasoning.strip(),
            tuple((call.name, call.arguments) for call in reply.calls),
        )
        key = _turn_key(number) if turn.call_ids else _text_key(turn.text)
        if self.is_strict:
            key += orjson.dumps(turn.reasoning)
        self._by_text[turn.text] = number
        self._turns[_with(place.digest, key)] = number
        self._by_number[number] = turn
        self._requests[place.digest] = number
        self._by_call |= dict.fromkeys(turn.call_ids, turn)

    def _known(self, one: Said) -> list[int]:
        """Returns the number of the turn whose reply this is, if it is one."""
        calls = one.message.tool_calls
        if calls:
            turns = [self._by_call[call.id].number for call in calls if call.id in self._by_call]
            return turns[:1]
        number = self._by_text.get(one.message.content.strip())
        return [] if number is None else [number]

    def _key(self, one: Said) -> bytes:
        message = one.message
        if message.role == "assistant":
            call_ids = tuple(call.id for call in message.tool_calls)
            turn = self._by_call.get(call_ids[0]) if call_ids else None
            reasoning = orjson.dumps((message.reasoning_content or "").strip())
            ending = reasoning if self.is_strict else b""
            is_known = turn is not None and turn.call_ids == call_ids
            if turn is not None and is_known and not (self.is_strict and _is_restated(one, turn)):
                return _turn_key(turn.number) + ending
            calls = json.dumps([call.model_dump(mode="json") for call in message.tool_calls])
            return orjson.dumps(["said", message.content.strip(), calls]) + ending
        call_id = message.tool_call_id
        answered = self._by_call.get(call_id) if call_id is not None else None
        at = (answered.number, answered.call_ids.index(call_id)) if answered else call_id
        shown = [one.data for one in message.pictures]
        return orjson.dumps([message.role, message.content, at, *shown])


def _is_unanswered(said: Sequence[Said], number: int) -> bool:
    return number + 1 == len(said) or said[number + 1].message.role != "assistant"


def _is_restated(one: Said, turn: _Turn) -> bool:
    """Returns whether text or calls differ; JSON that only looks different does not."""
    message = one.message
    if message.content.strip() != turn.text or len(message.tool_calls) != len(turn.calls):
        return True
    raw = one.raw_arguments or ("",) * len(turn.calls)
    return any(
        call.function.name != name or not _same(raw_one or call.function.arguments, arguments)
        for call, raw_one, (name, arguments) in zip(
            message.tool_calls, raw, turn.calls, strict=True
        )
    )


def _same(said: JsonValue, handed_out: str) -> bool:
    if isinstance(said, str):
        return said == handed_out
    try:
        return bool(json.loads(handed_out) == said)
    except ValueError:
        return False


def _turn_key(number: int) -> bytes:
    return orjson.dumps(["turn", number])


def _text_key(text: str) -> bytes:
    return orjson.dumps(["said", text.strip(), "[]"])


def _head(tools: Sequence[ToolSchema]) -> Digest:
    """Begins a digest: another list of tools is another conversation, for templates write tools
    before all messages."""
    return _with(b"", orjson.dumps(list(tools), option=orjson.OPT_SORT_KEYS))


def _with(digest: Digest, key: bytes) -> Digest:
    return hashlib.blake2b(digest + key, digest_size=16).digest()


def _in_order(conversation: Sequence[Said], turns: dict[str, _Turn]) -> list[Said]:
    """Returns the conversation with results in the order of the calls that they answer: harnesses
    send those of parallel calls as they end, and templates tell them apart by their order."""
    ordered: list[Said] = []
    results: list[Said] = []

    def flush() -> None:
        results.sort(key=lambda one: _position(one, turns))
        ordered.extend(results)
        results.clear()

    for one in conversation:
        if one.message.role == "tool":
            results.append(one)
        else:
            flush()
            ordered.append(one)
    flush()
    return ordered


def _position(result: Said, turns: dict[str, _Turn]) -> int:
    """Returns the place of the call that a result answers; results of unknown calls stay behind."""
    call_id = result.message.tool_call_id or ""
    turn = turns.get(call_id)
    return turn.call_ids.index(call_id) if turn is not None else len(turns)
