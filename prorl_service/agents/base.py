"""The agent interface, and the context that the pipeline hands an agent for one rollout.

An agent never tokenises, routes or frees anything: `RolloutContext` does that for it, so that every
agent is token-exact and leaks nothing.
"""

import asyncio
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Literal, ParamSpec, Protocol

from pydantic import BaseModel, JsonValue

from prorl_service import metrics
from prorl_service.agents.replay import Replay
from prorl_service.agents.services import OperatorServices, Requirements
from prorl_service.agents.words import words_of
from prorl_service.errors import AgentError, EvaluatorError, TaskError
from prorl_service.inference.base import Generation, Generator
from prorl_service.rewards.pool import ScoringPool
from prorl_service.sandbox.base import Sandbox, SandboxLimits, SandboxProvider
from prorl_service.schemas import (
    FinishReason,
    Limits,
    Message,
    Sampling,
    SegmentKind,
    Stage,
    Task,
    Trajectory,
    Turn,
    logprobs_mode_of,
)
from prorl_service.schemas.numbers import MAX_SCORE, is_score, shown
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.formats import Reply, ToolSchema
from prorl_service.tokens.ledger import Ledger
from prorl_service.tokens.stops import first_stop
from prorl_service.tools.base import Tool
from prorl_service.utils.budget import WorkClock

P = ParamSpec("P")
Restores = Literal["nothing", "conversation", "sandbox", "replay"]

SCORE_TIMEOUT_S = 90.0
"""Budget of one scoring call, waiting excluded: far below EVAL's budget. The pool's limit on CPU
time ends a hang; this one ends a call that gets no CPU time from its host."""


WRAP_UP_S = 60.0
"""Seconds beyond RUN's budget for an agent whose turns have used it up."""


@dataclass(frozen=True, slots=True)
class Prompt:
    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()


MAX_REPORT_BYTES = 256 << 10
"""Maximum size of one rollout's report as JSON, which is kept in the journal."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rollout's reward. `report` holds details for people, in the agent's own form.

    Raises `EvaluatorError` for a reward or component that is not a number within `MAX_SCORE`, and
    for a report that is not JSON or is too large.
    """

    reward: float
    components: dict[str, float] = field(default_factory=dict)
    report: dict[str, JsonValue] | None = None

    def __post_init__(self) -> None:
        for name, value in {**self.components, "reward": self.reward}.items():
            if not is_score(value):
                raise EvaluatorError(
                    f"{name}: a score must be a number from {-MAX_SCORE:.0f} to {MAX_SCORE:.0f}, "
                    f"not {shown(value)}",
                    hint="`Verdict(reward, components, report)` takes numbers first; scale them",
                )
        try:
            size = len(json.dumps(self.report, ensure_ascii=False, allow_nan=False).encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise EvaluatorError(
                f"a report must be JSON: {error}",
                hint="use numbers, texts, lists and dicts with texts as keys",
            ) from error
        if size > MAX_REPORT_BYTES:
            raise EvaluatorError(f"the report has {size} bytes, more than {MAX_REPORT_BYTES}")


def with_system(system: str, messages: Sequence[Message]) -> list[Message]:
    """Puts a system message before `messages`, unless they have their own."""
    if messages[0].role == "system":
        return list(messages)
    return [Message(role="system", content=system), *messages]


async def put_files(sandbox: Sandbox, files: Mapping[str, str]) -> None:
    """Uploads texts by path, relative to the working directory. Raises `TaskError`,
    `SandboxError`."""
    for path, text in files.items():
        try:
            await sandbox.upload(path, text.encode())
        except OSError as error:
            raise TaskError(f"cannot put {path!r} into the sandbox: {error}") from error


class AgentHandler(ABC):
    """One instance per rollout: keep state on `self` between the stages.

    Each stage has a budget and may be cancelled at any await. Sandboxes opened in INIT or RUN are
    stopped when RUN ends; EVAL opens its own. Raise `TaskError`, `AgentError` or `EvaluatorError`
    to say whose fault a failure is. Any other exception is blamed by stage: on the sandbox in
    INIT, on the agent in RUN, on the evaluator in EVAL.
    """

    name: ClassVar[str]
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset({Stage.INIT})
    """Stages that open a sandbox; one is prepared for each. If empty, the service does not need the
    task's image."""
    data_model: ClassVar[type[BaseModel] | None] = None
    """Model of `task.data`, whose JSON schema is shown to people. `__init__` has to apply it."""
    restores: ClassVar[Restores] = "nothing"
    """State with which a rollout continues from its last whole turn after a restart of the
    service: the conversation alone, or also the files of the one sandbox that INIT opens. INIT
    runs again first. With "replay", RUN starts again, too, and gets the earlier replies from
    `RolloutContext.replay`. With "nothing", the rollout starts from scratch."""
    offers: ClassVar[Sequence[Tool]] = ()
    """All tools that a task may be offered, to be shown to people. Not needed where its data
    names the tools, in a field of the type `ToolNames`."""
    uses: Requirements = Requirements()
    """Other services of the operator that the task needs; set it in `__init__`."""

    def __init__(self, task: Task) -> None:
        """Also runs at submission: check `task.data` here, raise `InvalidRequest` or pydantic's
        `ValidationError`, do no I/O. `task` is this handler's own copy."""
        self.task = task

    def check_host(self) -> None:  # noqa: B027 - most agents need nothing of it
        """Raises `TaskError` if the host lacks a program that the task needs. Called at submission,
        in a thread, where the rollouts will run."""

    @abstractmethod
    def prompt(self) -> Prompt:
        """Returns the first prompt. Pure; called at submission."""

    def solved_by(self, given: JsonValue) -> Sequence[str | Message]:
        """Returns replies of a policy that solves the task, for `prorl check`; none if that is not
        known. `given`: the row's `solution`, None without one. By default it has the replies: a
        text, or a list of texts and messages. Raises `ValueError` for another."""
        replies = given if isinstance(given, list) else [] if given is None else [given]
        return [one if isinstance(one, str) else Message.model_validate(one) for one in replies]

    def state(self) -> JsonValue:
        """Returns what this handler has learned in INIT and RUN, and `restore` needs."""
        return None

    def restore(self, state: JsonValue) -> None:  # noqa: B027 - most agents have none
        """Takes over the state of an earlier process. Called after INIT."""

    @abstractmethod
    async def init(self, rollout: "RolloutContext") -> None: ...

    @abstractmethod
    async def run(self, rollout: "RolloutContext") -> FinishReason: ...

    @abstractmethod
    async def eval(self, rollout: "RolloutContext") -> Verdict: ...


class Keeper(Protocol):
    async def keep(self, rollout: "RolloutContext", next_prompt: Sequence[int] | None) -> None: ...

    async def sampled(self, rollout: "RolloutContext") -> None: ...

    async def calls_begin(self, rollout: "RolloutContext", calls: int) -> None: ...


@dataclass(slots=True, repr=False)
class RolloutContext:
    """One rollout's resources and its record of what was sampled."""

    rollout_id: str
    task: Task
    sampling: Sampling
    limits: Limits
    seed: int | None
    prompt_ids: Sequence[int]
    max_model_len: int
    chat: ChatFormat
    generator: Generator
    sandboxes: SandboxProvider
    scoring: ScoringPool
    services: OperatorServices = field(default_factory=OperatorServices)
    clock: WorkClock = field(default_factory=WorkClock)
    """Clock of the rollout's work, for its budgets."""
    turns_end_s: float | None = None
    """Reading of `clock` at the end of RUN's budget; None before the first turn."""
    turns_most_s: float | None = None
    """Seconds of work for the turns that begin next, at most; None: all that is left for turns."""
    may_sample: bool = True
    """True until RUN ends, since all that is sampled is trained on."""
    open_calls: int = 0
    """Number of model calls in flight, and of those that failed."""
    begun_calls: int = 0
    """Number of model calls so far, of which each has a seed of its own."""
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    opened: list[Sandbox] = field(default_factory=list)
    """Sandboxes in the order in which they were opened."""
    keeper: Keeper | None = None
    """Store of whole turns, for a later process."""
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
    has_network: bool = False
    """True if programs in a sandbox of the rollout reach beyond it."""
    replay: Replay | None = None
    """Turns that an earlier process sampled, for an agent that starts again from its beginning."""
    ledger: Ledger = field(default_factory=Ledger)
    turns: list[Turn] = field(default_factory=list)
    kinds: dict[int, tuple[SegmentKind, bool]] = field(default_factory=dict)
    """Kinds of segments that are not simply the agent's own, and whether they are trained on."""
    final_turn: int | None = None
    """Number of the turn with the agent's answer; None: the last one."""
    stage: Stage = Stage.INIT
    """Stage whose work began last."""
    on_change: Callable[["RolloutContext"], None] | None = None
    """Callback after each change of a rollout that somebody watches."""

    def __repr__(self) -> str:
        return f"<rollout {self.rollout_id} in {self.stage.value}, {len(self.turns)} turns>"

    def enter(self, stage: Stage) -> None:
        self.stage = stage
        self.changed()

    def changed(self) -> None:
        """Tells those who watch. An agent with a loop of its own may call this after it has added
        to a turn."""
        if self.on_change is not None:
            self.on_change(self)

    async def open_sandbox(
        self,
        limits: SandboxLimits = SandboxLimits(),
        *,
        image: str | None = None,
        user: str | None = None,
    ) -> Sandbox:
        """Starts a sandbox of `image`, by default the task's, whose commands run as `user` of the
        image. Raises `TaskError`, `SandboxError`."""
        image = self.task.image if image is None else image
        sandbox = self.sandboxes.create(image=image, limits=limits, user=user)
        self.resources.push_async_callback(sandbox.stop)
        await sandbox.start()
        self.opened.append(sandbox)
        return sandbox

    async def score(self, function: Callable[P, float], *args: P.args, **kwargs: P.kwargs) -> float:
        """Runs a scoring function in a process that can be killed. Raises `EvaluatorError`; its
        subclass `ScoringAborted` blames the arguments."""
        async with self.scoring.worker(self.clock):
            return await self.scoring.score(function, SCORE_TIMEOUT_S, *args, **kwargs)

    def room(self, prompt_len: int) -> int:
        """Returns how many tokens the next call may sample; at most 0 if the budget is used up."""
        room = self.max_model_len - prompt_len
        if self.limits.max_response_tokens is not None:
            spent = prompt_len - len(self.prompt_ids)
            room = min(room, self.limits.max_response_tokens - spent)
        if self.sampling.max_tokens_per_turn is not None:
            room = min(room, self.sampling.max_tokens_per_turn)
        return room

    @property
    def calls_model(self) -> bool:
        return self.open_calls > 0

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> Turn:
        """Makes one model call and enters it in the ledger and in `turns`. Calls may overlap.

        `max_tokens`: most tokens to sample; None: `room`. `stop`: texts that end the turn, with
        the token that completes one; its `text` ends before that. Raises `BackendError`, and
        `AgentError` after RUN or when there is no room left.
        """
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
        )
        stopped = first_stop(generation.token_ids, stop, self.chat.pieces)
        if stopped is not None:
            generation = generation.until(stopped.tokens)
        self.open_calls -= 1
        waited_s = self.clock.waited_s - waited_s
        turn = self._enter(prompt_ids, generation, time.monotonic() - started - waited_s)
        turn.started_at, turn.waited_s = started_at, waited_s
        if stopped is not None:
            turn.text = turn.text.partition(stopped.text)[0]
        metrics.model_called(
            prompt=len(prompt_ids),
            sampled=turn.stop - turn.start,
            cached=turn.cached_tokens,
            took_s=turn.model_s,
        )
        self.turns.append(turn)
        self.changed()
        if self.keeper is not None:
            await self.keeper.sampled(self)
        return turn

    def earlier(self, parent: int | None, prompt_ids: Sequence[int]) -> Turn | None:
        """Enters the turn with which an earlier process answered this call, if there is one.
        `parent`: number of the turn that the call continues."""
        if self.replay is None:
            return None
        earlier = self.replay.take(len(self.turns), parent, prompt_ids)
        if earlier is None:
            return None
        self._next_seed()
        span = self.ledger.record(
            earlier.prompt_ids, earlier.token_ids, earlier.logprobs, earlier.versions
        )
        place = {"segment": span.segment, "start": span.start, "stop": span.stop}
        turn = earlier.turn.model_copy(update=place)
        self.turns.append(turn)
        self.changed()
        return turn

    def reply(self, turn: Turn, tools: Sequence[ToolSchema] = ()) -> Reply:
        """Parses a turn into reasoning, text, and calls of `tools`."""
        before = self.ledger.before(turn.segment, turn.start)
        return self.chat.read(turn.text, before, tools)

    def next_prompt(self, messages: Sequence[Message]) -> Sequence[int]:
        """Returns the current chain, extended by messages that answer its last turn."""
        ids = self.ledger.ids
        thinking = self.sampling.thinking
        ids.extend(self.chat.delta_ids(messages, after=ids[-1], thinking=thinking))
        return ids

    async def turn_ended(self, next_prompt: Sequence[int] | None) -> None:
        """Call this when all of a turn is done and the next prompt is known: a later process can
        continue from here, with this very prompt. None: a program asks for its prompts itself.
        May not return, if the service is about to end."""
        if self.keeper is not None:
            await self.keeper.keep(self, next_prompt)

    async def calls_begin(self, calls: int) -> None:
        """Call this before a turn's calls whose effects a restart does not take back, with their
        number: another attempt learns that they may have been made."""
        if self.keeper is not None and calls:
            await self.keeper.calls_begin(self, calls)

    def begin(self, prompt: Prompt) -> None:
        """Begins another conversation: its first turn answers this prompt. Limits hold for each."""
        self.first_turn, self.resumed_prompt = len(self.turns), ()
        self.prompt_ids = self.chat.prompt_ids(
            prompt.messages, tools=prompt.tools, thinking=self.sampling.thinking
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

    @property
    def answer(self) -> str:
        """The agent's last words: the text of its last reply, and all text in it if it is a JSON
        object, and in the calls that end it."""
        last = self.turns[-1 if self.final_turn is None else self.final_turn]
        return words_of(self.reply(last))

    def trajectory(self, finish_reason: FinishReason) -> Trajectory:
        segments = self.ledger.to_segments()
        for number, (kind, is_trained) in self.kinds.items():
            segments[number].kind, segments[number].is_trained = kind, is_trained
        return Trajectory(
            segments=segments,
            turns=self.turns,
            finish_reason=finish_reason,
            sampling=self.sampling,
            logprobs_mode=logprobs_mode_of(self.turns),
        )

    def _enter(self, prompt_ids: Sequence[int], generation: Generation, model_s: float) -> Turn:
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
        )

    def _next_seed(self) -> int | None:
        self.begun_calls += 1
        return None if self.seed is None else self.seed + self.begun_calls - 1
