"""One attempt at a rollout in this process: what it may use, and all that it has sampled.

Agents see it through `agents.base.RolloutContext`. The pipeline, the gateway and observers use it
by its methods. Knows neither the work of stages nor where turns are saved.
"""

import asyncio
import base64
import copy
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol, Self

from prorl_service import metrics
from prorl_service.errors import AgentError
from prorl_service.inference.base import Generation, Generator
from prorl_service.rewards.pool import ScoringPool
from prorl_service.sandbox.base import Sandbox, SandboxProvider
from prorl_service.schemas import (
    Figures,
    FinishReason,
    Limits,
    Message,
    Sampling,
    SegmentKind,
    Stage,
    Task,
    ToolCallRecord,
    Trajectory,
    Turn,
    contents_of,
    logprobs_mode_of,
    sampled_tokens,
)
from prorl_service.schemas.activity import Activity, WaitsFor
from prorl_service.schemas.pictures import id_of, shown
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.formats import Reply, ToolSchema
from prorl_service.tokens.ledger import Ledger
from prorl_service.tokens.replay import TurnReplay
from prorl_service.tokens.stops import first_stop
from prorl_service.utils.budget import WorkClock

log = logging.getLogger(__name__)

WRAP_UP_S = 60.0
"""Seconds beyond RUN's budget for an agent whose turns have used it up."""


class TurnSaver(Protocol):
    """What saves an attempt's turns for a later process."""

    async def sampled(self) -> None: ...

    async def calls_begin(self, calls: int) -> None: ...

    async def turn_ended(self, next_prompt: Sequence[int] | None) -> None: ...


@dataclass(slots=True)
class SampledTurns:
    """All that an attempt has sampled so far."""

    sampling: Sampling
    ledger: Ledger = field(default_factory=Ledger)
    turns: list[Turn] = field(default_factory=list)
    kinds: dict[int, tuple[SegmentKind, bool]] = field(default_factory=dict)
    """Kinds of segments that are not simply the agent's own, and whether they are trained on."""
    pictures: dict[int, bytes] = field(default_factory=dict)
    """Pictures that prompts may have, keyed by the id of their tokens."""

    def add_pictures(self, messages: Sequence[Message]) -> None:
        """Adds those of messages that are about to become part of a prompt."""
        for message in messages:
            for picture in message.pictures:
                content = picture.content
                self.pictures[id_of(content)] = content

    def shown_in(self, prompt_ids: Sequence[int]) -> list[bytes]:
        """Returns the pictures of a prompt, in their order. Without any, looks at no id."""
        return [self.pictures[one] for one in shown(prompt_ids)] if self.pictures else []

    def _pictures_of_prompts(self) -> dict[int, str]:
        if not self.pictures:
            return {}
        seen = {id_ for chain in self.ledger.chains for id_ in shown(chain.ids)}
        others = sorted(seen - contents_of(self.turns).keys())
        return {id_: base64.b64encode(self.pictures[id_]).decode() for id_ in others}

    def figures(self) -> Figures:
        return Figures(
            turns=len(self.turns),
            sampled_tokens=sampled_tokens(self.turns),
            segments=len(self.ledger.chains),
            model_s=sum(turn.model_s for turn in self.turns),
            tool_s=sum(call.duration_s for turn in self.turns for call in turn.tool_calls),
        )

    def copy(self) -> Self:
        """One that does not change any more, of which a thread may make text and lists of tokens.
        Arrays are copied as bytes, texts not at all: it is asked for in the event loop."""
        turns = [
            turn.model_copy(update={"tool_calls": list(turn.tool_calls)}) for turn in self.turns
        ]
        return type(self)(
            self.sampling, copy.deepcopy(self.ledger), turns, dict(self.kinds), self.pictures
        )

    def reward_turns(self, rewards: Mapping[int, float]) -> None:
        """Sets the turns' rewards by number."""
        for number, reward in rewards.items():
            self.turns[number].reward = float(reward)

    def trajectory(self, finish_reason: FinishReason = FinishReason.ERROR) -> Trajectory:
        """`finish_reason` has no meaning before the attempt's end."""
        segments = self.ledger.to_segments()
        for number, (kind, is_trained) in self.kinds.items():
            segments[number].kind, segments[number].is_trained = kind, is_trained
        for turn in self.turns:
            if turn.policy is not None:
                segments[turn.segment].is_trained = False
        return Trajectory(
            segments=segments,
            turns=self.turns,
            finish_reason=finish_reason,
            sampling=self.sampling,
            logprobs_mode=logprobs_mode_of(self.turns),
            policy=next((turn.policy for turn in self.turns if turn.policy is not None), None),
            pictures=self._pictures_of_prompts(),
        )


@dataclass(slots=True, repr=False, eq=False)
class Attempt:
    rollout_id: str
    task: Task
    sampling: Sampling
    limits: Limits
    seed: int | None
    prompt_ids: Sequence[int]
    """First prompt of the current conversation, from which limits are counted."""
    max_model_len: int
    chat: ChatFormat
    generator: Generator
    sandboxes: SandboxProvider
    scoring: ScoringPool
    clock: WorkClock = field(default_factory=WorkClock)
    """Clock of the rollout's work, for its budgets."""
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    on_change: Callable[["Attempt"], None] | None = None
    """Callback after each change of a rollout that somebody watches."""
    stage: Stage = Stage.INIT
    """Stage whose work began last."""
    stage_began_s: float = 0.0
    """Reading of `clock` when it began."""
    stage_began_at: float = 0.0
    """Monotonic time at which it began."""
    turns_end_s: float | None = None
    """Reading of `clock` at the end of RUN's budget; None before the first turn."""
    turns_most_s: float | None = None
    """Work budget of the next turns, in seconds; None: no limit of their own."""
    may_sample: bool = True
    """True until RUN ends, since all that is sampled is trained on."""
    open_calls: int = 0
    """Number of model calls in flight, and of those that failed."""
    begun_calls: int = 0
    """Number of model calls so far, of which each has a seed of its own."""
    open_tool: str = ""
    """Name of the tool that is called now."""
    changed_at: float = 0.0
    """Monotonic time of the last change."""
    opened: list[Sandbox] = field(default_factory=list)
    """Sandboxes in the order in which they were opened."""
    has_network: bool = False
    """True if programs in a sandbox of the rollout reach beyond it."""
    saver: TurnSaver | None = None
    """None: another process cannot continue the rollout."""
    replay: TurnReplay | None = None
    """Turns that were sampled before, for an agent that starts from its beginning."""
    resumed_prompt: Sequence[int] = ()
    """Prompt of the first turn in this process, if an earlier one sampled those in `turns`."""
    resumed_note: str = ""
    """Note for the model of a resumed rollout on what is new or may be repeated; precedes the
    output of the next tool call."""
    repeated_calls: int = 0
    """Number of calls with effects outside the sandbox that an earlier attempt may have made, and
    that are not among `turns`."""
    first_turn: int = 0
    """Number of the current conversation's first turn."""
    final_turn: int | None = None
    """Number of the turn with the agent's answer, in its calls, too; None: the last one's text."""
    sampled: SampledTurns = field(init=False)
    _releasing: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.sampled = SampledTurns(self.sampling)
        self.sampled.add_pictures(self.task.messages)

    def __repr__(self) -> str:
        return f"<rollout {self.rollout_id} in {self.stage.value}, {len(self.turns)} turns>"

    @property
    def ledger(self) -> Ledger:
        return self.sampled.ledger

    @property
    def turns(self) -> list[Turn]:
        return self.sampled.turns

    @property
    def calls_model(self) -> bool:
        return self.open_calls > 0

    # --- stages and budgets ---------------------------------------------------------------------

    def enter(self, stage: Stage) -> None:
        self.stage, self.stage_began_s = stage, self.clock.worked_s
        self.stage_began_at = time.monotonic()
        self.changed()

    def changed(self) -> None:
        """Tells those who watch."""
        self.changed_at = time.monotonic()
        if self.on_change is not None:
            self.on_change(self)

    def activity(self, budget_s: float) -> Activity:
        """Returns what it does now. `budget_s`: budget of its stage."""
        if self.clock.is_waiting:
            waits_for = WaitsFor.ENGINE if self.calls_model else WaitsFor.SERVICE
        elif self.calls_model:
            waits_for = WaitsFor.MODEL
        else:
            waits_for = WaitsFor.TOOL if self.open_tool else WaitsFor.AGENT
        now = time.monotonic()
        return Activity(
            stage=self.stage,
            is_queued=False,
            took_s=now - self.stage_began_at,
            worked_s=self.clock.worked_s - self.stage_began_s,
            budget_s=budget_s,
            waits_for=waits_for,
            waits_s=now - self.changed_at,
            tool=self.open_tool,
        )

    @property
    def turns_left_s(self) -> float:
        """Seconds of work left for turns; infinite before the first."""
        return math.inf if self.turns_end_s is None else self.turns_end_s - self.clock.worked_s

    @asynccontextmanager
    async def turns_budget(self) -> AsyncIterator[asyncio.Timeout]:
        """Raises `TimeoutError` when RUN's budget is used up. The agent then has another
        `WRAP_UP_S` to fetch what EVAL needs from its sandboxes."""
        if self.turns_end_s is None:
            self.turns_end_s = self.clock.worked_s + self.clock.left_s
            self.clock.extend(WRAP_UP_S)
        most_s = math.inf if self.turns_most_s is None else self.turns_most_s
        async with self.clock.deadline(min(self.turns_left_s, most_s)) as deadline:
            yield deadline

    async def release(self) -> None:
        """Frees sandboxes and backend pin. Continues when the caller is cancelled; never raises."""
        if self._releasing is None:
            self._releasing = asyncio.create_task(self._close())
        await asyncio.shield(self._releasing)
        self._releasing = None

    async def _close(self) -> None:
        try:
            await self.resources.aclose()
        except Exception:  # a sandbox that cannot be stopped must not cost the rollout its result
            log.exception("rollout %s: releasing its resources failed", self.rollout_id)

    # --- turns ----------------------------------------------------------------------------------

    def room(self, prompt_len: int) -> int:
        """Returns how many tokens the next call may sample; at most 0 if the budget is used up."""
        room = self.max_model_len - prompt_len
        if self.limits.max_response_tokens is not None:
            spent = prompt_len - len(self.prompt_ids)
            room = min(room, self.limits.max_response_tokens - spent)
        if self.sampling.max_tokens_per_turn is not None:
            room = min(room, self.sampling.max_tokens_per_turn)
        return room

    async def sample(
        self, prompt_ids: Sequence[int], *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> Turn:
        """See `RolloutContext.sample`."""
        if not self.may_sample:
            raise AgentError("the policy can be sampled in INIT and RUN only")
        room = self.room(len(prompt_ids)) if max_tokens is None else max_tokens
        if room <= 0:
            raise AgentError(f"no room to sample after {len(prompt_ids)} prompt tokens")
        started, waited_s = time.monotonic(), self.clock.waited_s
        started_at, self.resumed_prompt = time.time(), ()
        self.open_calls += 1
        self.changed()
        generation = await self.generator.generate(
            prompt_ids,
            sampling=self.sampling,
            max_tokens=room,
            seed=self._next_seed(),
            stop_token_ids=sorted(self.chat.end_ids),
            stop=stop,
            pictures=self.sampled.shown_in(prompt_ids),
        )
        stopped = first_stop(generation.token_ids, stop, self.chat.pieces)
        if stopped is not None:
            generation = generation.until(stopped.tokens)
        self.open_calls -= 1
        waited_s = self.clock.waited_s - waited_s
        turn = self._entered(prompt_ids, generation, time.monotonic() - started - waited_s)
        turn.started_at, turn.waited_s = started_at, waited_s
        if stopped is not None:
            turn.text = turn.text.partition(stopped.text)[0]
        metrics.model_called(
            prompt=len(prompt_ids),
            sampled=turn.stop - turn.start,
            cached=turn.cached_tokens,
            took_s=turn.model_s,
            times=turn.times,
        )
        self.turns.append(turn)
        self.changed()
        if self.saver is not None:
            await self.saver.sampled()
        return turn

    def _entered(self, prompt_ids: Sequence[int], generation: Generation, model_s: float) -> Turn:
        span = self.ledger.record(
            prompt_ids, generation.token_ids, generation.logprobs, generation.policy_versions
        )
        return Turn(
            segment=span.segment,
            start=span.start,
            stop=span.stop,
            text=self.chat.decode(generation.token_ids, stopped=generation.finish_reason == "stop"),
            finish_reason=generation.finish_reason,
            model_s=model_s,
            cached_tokens=generation.cached_tokens,
            backend=generation.backend,
            logprobs_mode=generation.logprobs_mode,
            policy=generation.policy,
            times=generation.times,
        )

    def _next_seed(self) -> int | None:
        self.begun_calls += 1
        return None if self.seed is None else self.seed + self.begun_calls - 1

    def call_abandoned(self) -> None:
        """Uncounts a call that was cancelled since its client has left: nothing has failed."""
        self.open_calls -= 1

    def prompt_then(self, parent: int | None, prompt_ids: Sequence[int]) -> Sequence[int]:
        """Returns the prompt of a call that continues turn `parent`: the one that was seen before,
        while turns are replayed, else `prompt_ids`."""
        if self.replay is None or parent is None:
            return prompt_ids
        then, turn = self.replay.prompt(parent, prompt_ids), self.turns[parent]
        turn.results_differ |= turn.is_replayed and [*then] != [*prompt_ids]
        return then

    def earlier(self, prompt_ids: Sequence[int]) -> Turn | None:
        """Enters the turn that answered this prompt before, if there is one. Raises `TaskError` if
        the turns with which the rollout should begin cannot be replayed."""
        turn = None if self.replay is None else self.replay.take(prompt_ids, self.ledger)
        if turn is not None:
            self._next_seed()
            self.turns.append(turn)
            self.changed()
        return turn

    def continue_from(
        self, ledger: Ledger, turns: Sequence[Turn], kinds: dict[int, tuple[SegmentKind, bool]]
    ) -> None:
        """Takes over what an earlier process sampled."""
        self.sampled.ledger, self.sampled.kinds = ledger, kinds
        self.turns.extend(turns)

    def end_turns(self) -> None:
        """Ends sampling, with RUN."""
        self.may_sample, self.resumed_prompt = False, ()

    async def turn_ended(self, next_prompt: Sequence[int] | None) -> None:
        """See `RolloutContext.turn_ended`. `next_prompt`: None for a program, which asks for its
        turns itself."""
        if self.saver is not None:
            await self.saver.turn_ended(next_prompt)

    def reply(self, turn: Turn, tools: Sequence[ToolSchema] = ()) -> Reply:
        """Parses a turn into reasoning, text, and calls of `tools`."""
        before = self.ledger.before(turn.segment, turn.start)
        return self.chat.read(turn.text, before, tools)

    def note_problem(self, turn: Turn, problem: str) -> None:
        """Notes how a reply breaks the format of calls."""
        turn.format_error = problem

    @contextmanager
    def calling(self, tool: str) -> Iterator[None]:
        """Marks a tool call that runs. Observers are told of its result only."""
        self.open_tool, self.changed_at = tool, time.monotonic()
        try:
            yield
        finally:
            self.open_tool = ""

    def note_call(self, turn: Turn, record: ToolCallRecord) -> None:
        """Adds a call of the turn that was made, and its result. One of a replay may have the
        results that the policy saw."""
        if not turn.is_replayed or self.replay is None or not self.replay.has_results:
            turn.tool_calls.append(record)
        self.changed()

    def mark(
        self,
        kinds: Mapping[int, tuple[SegmentKind, bool]],
        abandoned: Collection[int],
        final_turn: int | None,
    ) -> None:
        """Marks segments by number with their kinds and whether they are trained on, abandoned
        turns by number, and the turn with the agent's answer."""
        self.sampled.kinds |= kinds
        for number in abandoned:
            self.turns[number].is_abandoned = True
        self.final_turn = final_turn
