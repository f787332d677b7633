"""The model API of one rollout: a request in, sampled ids in the ledger, a reply out.

Every call is sampled by the rollout, whose ledger records the very prompt that the engine saw. A
request that continues a turn gets that turn's ids and what follows them; any other
is rendered as a whole, and opens a segment. Nothing here knows HTTP.
"""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from prorl_service.attempt import Attempt
from prorl_service.errors import BackendError, InvalidRequest, ProRLError, TaskError
from prorl_service.gateway.calls import (
    CallReply,
    CallRequest,
    ContextTooLong,
    NoThreads,
    Refused,
    ReplyCall,
    Usage,
)
from prorl_service.gateway.kinds import AnsweredCall, abandoned, answer, kinds_of
from prorl_service.gateway.matching import Conversations, Place
from prorl_service.schemas import (
    FinishReason,
    Message,
    SegmentKind,
    ToolCallRecord,
    Turn,
)
from prorl_service.schemas.numbers import MAX_SCORE
from prorl_service.tokens.chat import LONG_CHARS
from prorl_service.tokens.formats import BrokenCall, Reply, ToolCall
from prorl_service.tokens.ledger import Span
from prorl_service.tokens.stops import first_stop
from prorl_service.utils.tasks import Changes

log = logging.getLogger(__name__)

KEPT_REPLIES = 64
"""Newest replies that a repeated request gets again."""


class Spent(Refused):
    """The rollout may sample nothing more, in any conversation."""

    def __init__(self, reason: FinishReason) -> None:
        super().__init__(f"the rollout has ended: {reason.value}", status=403)


@dataclass(slots=True)
class Counts:
    """Numbers for reports and metrics."""

    calls: int = 0
    """Calls that were answered."""
    repeated: int = 0
    """Requests that got the reply to the same request before."""
    restated: set[int] = field(default_factory=set)
    """Turns that were echoed back with changes."""
    broken_calls: int = 0
    refused: int = 0
    """Requests that the gateway did not answer because of what they ask."""
    errors: int = 0
    """Requests that the gateway or the engines failed to answer."""
    too_long: int = 0
    """Requests whose prompt left no room to sample."""
    without_effect: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _HandedOut:
    """A call that a client knows."""

    turn: Turn
    call: ToolCall | BrokenCall
    count: int
    """Number of calls of its turn."""


class RolloutGateway:
    """Calls may overlap: sub-agents call while the agent does."""

    def __init__(self, rollout: Attempt, *, model: str = "policy", strict: bool = False) -> None:
        """`model`: the name that clients are told. `strict`: a turn that comes back otherwise than
        it was handed out is rendered as it came, in a new segment."""
        self.model = model
        self.counts = Counts()
        self.finish: asyncio.Future[FinishReason] = asyncio.get_running_loop().create_future()
        """Reason why nothing more is sampled, once there is one; or the error that ended it."""
        self._rollout = rollout
        self._conversations = Conversations(is_strict=strict)
        self._answered: list[AnsweredCall] = []
        self._handed_out: dict[str, _HandedOut] = {}
        """Calls by the ids that clients know."""
        self._calls: dict[bytes, asyncio.Task[CallReply]] = {}
        self._waiting: dict[bytes, int] = {}
        self._number = 0
        self._held = dict[int, int]()
        """Most tokens that each call in flight may sample, by a number of its own."""
        self._changes = Changes()
        self.refusal: Refused | None = None
        """What the newest request was refused for; None if it was answered."""

    @property
    def max_model_len(self) -> int:
        return self._rollout.max_model_len

    def begun(self) -> CallReply:
        """Returns the beginning of a reply, with a name that nobody can guess."""
        name, now = secrets.token_hex(8), int(time.time())
        return CallReply(name=name, model=self.model, created_at=now, usage=Usage(0, 0))

    @property
    def sees(self) -> bool:
        """True if the policy sees pictures."""
        return self._rollout.chat.pictures is not None

    async def answer(
        self, request: CallRequest, begun: CallReply, *, key: bytes, is_repeated: bool
    ) -> CallReply:
        """Samples the reply that has `begun`, or gives that of the same request before.

        `key`: digest of the request. Identical requests in flight, and retries marked as such
        by the client, share one sample. When nobody waits for a call any more, it is cancelled, and
        nothing of it is recorded. Raises `Refused`.
        """
        task = self._calls.get(key)
        if task is None or not _is_usable(task, is_repeated=is_repeated):
            task = asyncio.create_task(self._sample(request, begun))
            self._calls[key] = task
            self._forget()
        else:
            self.counts.repeated += 1
        self._waiting[key] = self._waiting.get(key, 0) + 1
        try:
            reply = await asyncio.shield(task)
            self.refusal = None
            return replace(reply, name=begun.name, created_at=begun.created_at)
        except Refused as refusal:
            self.note(refusal)
            raise
        except Exception as error:
            log.exception("the gateway failed at a request")
            failure = Refused(f"the gateway failed: {error}", status=500, kind="api_error")
            self.note(failure)
            raise failure from error
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
                task.cancel()  # does nothing to one that is done

    def note(self, refusal: Refused) -> None:
        """Counts a request that is not answered, also one that could not even be read. A rollout
        that has spent what it has refuses nothing, nor does one that holds no threads."""
        if isinstance(refusal, Spent | ContextTooLong | NoThreads):
            return
        self.refusal = refusal
        if refusal.status >= 500:
            self.counts.errors += 1
        else:
            self.counts.refused += 1

    async def count_tokens(self, request: CallRequest) -> int:
        """Returns the length of the prompt that this request would have. Raises `Refused`."""
        return len(await self._prompt(self._conversations.place(request), request))

    def _forget(self) -> None:
        for key in list(self._calls)[:-KEPT_REPLIES]:
            if self._calls[key].done():
                del self._calls[key]

    # --- one call -------------------------------------------------------------------------------

    async def _sample(self, request: CallRequest, begun: CallReply) -> CallReply:
        async with self._held_turn() as held:
            return await self._sampled(request, begun, held)

    @asynccontextmanager
    async def _held_turn(self) -> AsyncIterator[int]:
        """Holds one of the rollout's turns for a call until it is answered or given up, and yields
        the number under which it holds tokens. Waits for calls in flight that hold the last ones.
        Raises `Spent`."""
        most = self._rollout.limits.max_turns
        while self._held and self.counts.calls + len(self._held) >= most:
            await self._changes.wait()
        self._check_open()
        self._number += 1
        held = self._number
        self._held[held] = 0
        try:
            yield held
        finally:
            del self._held[held]
            self._changes.notify()

    async def _sampled(self, request: CallRequest, begun: CallReply, held: int) -> CallReply:
        place = self._conversations.place(request)
        self.counts.restated.update(place.restated)
        self.counts.without_effect.update(request.without_effect)
        self.counts.left_out.update(request.left_out)
        self._note_results(place.rest)
        prompt = self._rollout.prompt_then(place.turn, await self._prompt(place, request))
        await self._rollout.turn_ended(None)
        turn = self._earlier(prompt)
        if turn is None:
            self._held[held] = await self._room(len(prompt), request.max_tokens)
            turn = await self._turn(prompt, self._held[held], request.stop)
        self.counts.calls += 1
        reply = self._reply(turn, request, begun, len(prompt))
        self._conversations.add(place, len(self._rollout.turns) - 1, reply)
        self._answered.append(
            AnsweredCall(
                segment=turn.segment,
                parent=place.turn,
                tools=place.tools,
                system=place.system,
                quoted=place.quoted,
                asked_again=place.asked_again,
                has_calls=bool(reply.calls),
                text=reply.text,
                is_subagent=request.is_subagent,
            )
        )
        return reply

    def mark(self, trained: Collection[SegmentKind], printed: str) -> dict[str, float]:
        """Marks segments by their kinds, of which `trained` are learnt from, abandoned turns, and
        the answer. `printed`: the program's own output. Returns figures of the rollout. Call it
        once, when nothing is sampled any more."""
        rollout, calls = self._rollout, self._answered
        found = kinds_of(calls)
        kinds = found.of_segments
        thrown_away = abandoned(calls)
        answered = answer(calls, found.own, printed)
        marked = {segment: (kind, kind in trained) for segment, kind in kinds.items()}
        rollout.mark(marked, thrown_away, answered.turn)
        figures = {
            "calls": len(calls),
            "segments": len(kinds),
            "restated": len(self.counts.restated),
            "abandoned": len(thrown_away),
            "repeated": self.counts.repeated,
            "broken_calls": self.counts.broken_calls,
            "answer_unsure": not answered.is_sure,
            "refused": self.counts.refused,
            "errors": self.counts.errors,
        }
        for name in ("subagent", "auxiliary"):
            figures[f"{name}_tokens"] = sum(
                turn.stop - turn.start for turn in rollout.turns if kinds[turn.segment] == name
            )
        return {name: min(float(value), MAX_SCORE) for name, value in figures.items()}

    def _check_open(self) -> None:
        if not self.finish.done() and self.counts.calls >= self._rollout.limits.max_turns:
            self.finish.set_result(FinishReason.MAX_TURNS)
        if self.finish.done():
            failed = self.finish.exception() is not None
            raise Spent(FinishReason.ERROR if failed else self.finish.result())

    async def _prompt(self, place: Place, request: CallRequest) -> Sequence[int]:
        chat, thinking = self._rollout.chat, self._rollout.sampling.thinking
        messages = [self._named(message, place) for message in place.rest]
        self._rollout.sampled.add_pictures(messages)

        def render() -> Sequence[int]:
            if place.turn is None:
                return chat.prompt_ids(messages, tools=request.tools, thinking=thinking)
            turn = self._rollout.turns[place.turn]
            ids = self._rollout.ledger.before(turn.segment, turn.stop)
            ids.extend(chat.delta_ids(messages, after=ids[-1], thinking=thinking))
            return ids

        try:
            if sum(len(message.content) for message in messages) < LONG_CHARS:
                return render()
            return await asyncio.to_thread(render)
        except InvalidRequest as error:
            raise Refused(error.message) from error

    def _named(self, message: Message, place: Place) -> Message:
        """Returns a result with the name of its tool and, behind the call itself, with the call's
        own id: some templates write them. Minted ids would also be new to the template's cache at
        each call."""
        known = self._handed_out.get(message.tool_call_id or "")
        if known is None:
            return message
        call = known.call
        own: dict[str, str | None] = {"name": message.name or call.name}
        if place.turn is not None:
            own["tool_call_id"] = call.id if isinstance(call, ToolCall) else None
        return message.model_copy(update=own)

    async def _room(self, prompt_tokens: int, wanted: int | None) -> int:
        """Returns most tokens to sample, once calls in flight leave some. Raises `ContextTooLong`,
        which makes clients compact their history, and `Spent`."""
        limits, sampling = self._rollout.limits, self._rollout.sampling
        room = self.max_model_len - prompt_tokens
        if room <= 0:
            self.counts.too_long += 1
            raise ContextTooLong(prompt_tokens, self.max_model_len)
        if limits.max_response_tokens is not None:
            while (left := limits.max_response_tokens - self._sampled_tokens()) > 0:
                if (free := left - sum(self._held.values())) > 0:
                    break
                await self._changes.wait()
            else:
                if not self.finish.done():
                    self.finish.set_result(FinishReason.LENGTH)
                raise Spent(FinishReason.LENGTH)
            room = min(room, free)
        most = (room, sampling.max_tokens_per_turn, wanted)
        return min(one for one in most if one is not None)

    def _sampled_tokens(self) -> int:
        return sum(turn.stop - turn.start for turn in self._rollout.turns)

    def _earlier(self, prompt: Sequence[int]) -> Turn | None:
        try:
            return self._rollout.earlier(prompt)
        except TaskError as error:
            raise self._failed(error) from error

    def _failed(self, error: ProRLError) -> Refused:
        if not self.finish.done():
            self.finish.set_exception(error)
        return Refused(error.message, status=500, kind="api_error")

    async def _turn(self, prompt: Sequence[int], room: int, stop: Sequence[str]) -> Turn:
        try:
            return await self._rollout.sample(prompt, max_tokens=room, stop=stop)
        except BackendError as error:
            raise self._failed(error) from error
        except asyncio.CancelledError:
            self._rollout.call_abandoned()
            raise

    # --- what clients are told ------------------------------------------------------------------

    def _reply(
        self, turn: Turn, request: CallRequest, begun: CallReply, prompt_tokens: int
    ) -> CallReply:
        read = self._rollout.reply(turn, request.tools)
        ids, *_ = self._rollout.ledger.sampled(Span(turn.segment, turn.start, turn.stop))
        stopped = first_stop(ids, request.stop, self._rollout.chat.pieces)
        is_cut = turn.finish_reason == "length"
        if read.problem is not None:
            self._rollout.note_problem(turn, read.problem.message)
        calls, text = [], read.content.strip()
        written = [] if (is_cut or stopped) and read.problem else _calls_of(read)
        if not request.takes_broken_calls:
            broken = [call.written for call in written if isinstance(call, BrokenCall)]
            text = "\n".join([*([text] if text else []), *broken])
            written = [call for call in written if isinstance(call, ToolCall)]
            self.counts.broken_calls += len(broken)
        for number, call in enumerate(written):
            call_id = f"{request.call_prefix}{begun.name}_{number}"
            self._handed_out[call_id] = _HandedOut(turn, call, len(written))
            self.counts.broken_calls += isinstance(call, BrokenCall)
            calls.append(ReplyCall(call_id, call.name, _arguments_of(call)))
        return replace(
            begun,
            text=text,
            reasoning=read.reasoning.strip(),
            calls=tuple(calls),
            ending="length" if is_cut else "stop",
            stop=None if stopped is None else stopped.text,
            usage=Usage(prompt_tokens, turn.stop - turn.start, turn.cached_tokens),
        )

    def _note_results(self, messages: Sequence[Message]) -> None:
        """Adds results to the turns whose calls they answer, for people. A turn of a replay has its
        results."""
        for message in messages:
            known = self._handed_out.get(message.tool_call_id or "")
            if known is None:
                continue
            turn, call = known.turn, known.call
            arguments = call.arguments if isinstance(call, ToolCall) else {"": call.arguments}
            record = ToolCallRecord(
                name=call.name,
                arguments=arguments,
                output=message.content,
                pictures=[one.data for one in message.pictures],
            )
            if len(turn.tool_calls) < min(known.count, MAX_NOTED):
                self._rollout.note_call(turn, record)


MAX_NOTED = 1024


def _is_usable(task: "asyncio.Task[CallReply]", *, is_repeated: bool) -> bool:
    """Returns whether a request may get what this call gave, or will give, to its like."""
    if not task.done():
        return True
    return is_repeated and not task.cancelled() and task.exception() is None


def _calls_of(reply: Reply) -> Sequence[ToolCall | BrokenCall]:
    return reply.calls if reply.problem is None else reply.attempts


def _arguments_of(call: ToolCall | BrokenCall) -> str:
    if isinstance(call, BrokenCall):
        return call.arguments
    return json.dumps(call.arguments, ensure_ascii=False)
