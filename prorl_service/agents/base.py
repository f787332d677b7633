"""The agent interface, and the context that the pipeline hands an agent for one rollout.

An agent never tokenises, routes or frees anything: `RolloutContext` does that for it, so that every
agent is token-exact and leaks nothing.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, ParamSpec, cast

from pydantic import BaseModel, JsonValue

from prorl_service.agents.services import OperatorServices, Requirements
from prorl_service.attempt import Attempt
from prorl_service.errors import EvaluatorError, TaskError
from prorl_service.sandbox.base import Sandbox, SandboxLimits
from prorl_service.schemas import FinishReason, Message, Stage, Task, Turn
from prorl_service.schemas.numbers import MAX_SCORE, is_score, shown
from prorl_service.tokens.formats import Reply, ToolSchema
from prorl_service.tools.base import Tool

P = ParamSpec("P")
Restores = Literal["nothing", "conversation", "sandbox", "replay"]

SCORE_TIMEOUT_S = 90.0
"""Budget of one scoring call, waiting excluded: far below EVAL's budget. The pool's limit on CPU
time ends a hang; this one ends a call that gets no CPU time from its host."""


@dataclass(frozen=True, slots=True)
class Prompt:
    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()


MAX_REPORT_BYTES = 256 << 10
"""Maximum size of one rollout's report as JSON, which is kept in the journal."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rollout's reward. `report` holds details for people, in the agent's own form.

    `turn_rewards`: parts of the reward that were earned at single turns, by the turn's place in
    `rollout.turns`. `reward` is the total all the same: what they leave of it, or exceed it by,
    was earned at the end.

    Raises `EvaluatorError` for a reward or component that is not a number within `MAX_SCORE`, and
    for a report that is not JSON or is too large.
    """

    reward: float
    components: dict[str, float] = field(default_factory=dict)
    report: dict[str, JsonValue] | None = None
    turn_rewards: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        of_turns = {f"turn_rewards[{shown(turn)}]": one for turn, one in self.turn_rewards.items()}
        for name, value in {**self.components, **of_turns, "reward": self.reward}.items():
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

    def checked(self, *, turns: int) -> "Verdict":
        """Returns a copy, checked again, since components can be changed. Raises `EvaluatorError`,
        also for the reward of a turn that a rollout of so many turns does not have."""
        for turn in self.turn_rewards:
            if type(turn) is not int or not 0 <= turn < turns:
                raise EvaluatorError(
                    f"turn_rewards: the rollout has {turns} turns, and none is {shown(turn)}",
                    hint="turns are counted from 0, as in `rollout.turns`",
                )
        return replace(self, turn_rewards=dict(self.turn_rewards))


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
    runs again first. With "replay", RUN starts again, too, and the gateway gives its program the
    earlier replies. With "nothing", the rollout starts from scratch."""
    offers: ClassVar[Sequence[Tool]] = ()
    """All tools that a task may be offered, to be shown to people. Not needed where its data
    names the tools, in a field of the type `ToolNames`."""
    uses: Requirements = Requirements()
    """Other services of the operator that the task needs; set it in `__init__`."""

    def __init__(self, task: Task) -> None:
        """Also runs at submission: check `task.data` here, raise `InvalidRequest` or pydantic's
        `ValidationError`, do no I/O. `task` is this handler's own copy."""
        self.task = task

    @classmethod
    def create(cls, task: Task, agents: Mapping[str, type["AgentHandler"]]) -> "AgentHandler":
        """Returns a handler for the task. `agents`: all of the service by name, for one that works
        with another. Raises as `__init__`."""
        return cls(task)

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
        return [one if isinstance(one, str) else Message.written(one) for one in replies]

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


class RolloutContext:
    """One rollout, as its agent sees it."""

    def __init__(self, attempt: Attempt, services: OperatorServices | None = None) -> None:
        self.attempt = attempt
        """The service's own side of the rollout, whose names may change with any version."""
        self.rollout_id = attempt.rollout_id
        self.task = attempt.task
        self.limits = attempt.limits
        self.sampling = attempt.sampling
        self.services = services or OperatorServices()
        """Services of the operator: MCP servers, a judge, and others."""
        self.turns: list[Turn] = attempt.turns
        """All turns so far, those of an earlier process included."""

    def __repr__(self) -> str:
        return repr(self.attempt)

    @property
    def prompt_ids(self) -> Sequence[int]:
        """First prompt of the conversation; or, while a rollout that continues in this process has
        sampled nothing in it and RUN lasts, the one behind its last whole turn."""
        return self.attempt.resumed_prompt or self.attempt.prompt_ids

    @property
    def repeated_calls(self) -> int:
        """Number of calls with effects outside the sandbox that an earlier attempt may have made,
        and that are not among `turns`."""
        return self.attempt.repeated_calls

    @property
    def answer(self) -> str:
        """The agent's last words: the text of its last reply, and all text in it if it is a JSON
        object, and in calls that ended the rollout, such as one of `submit`. Another call is no
        answer, whatever its arguments say."""
        final = self.attempt.final_turn
        reply = self.reply(self.turns[-1 if final is None else final])
        return words_of(reply if final is not None else replace(reply, calls=[]))

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
        sandbox = self.attempt.sandboxes.create(image=image, limits=limits, user=user)
        self.attempt.resources.push_async_callback(sandbox.stop)
        await sandbox.start()
        self.attempt.opened.append(sandbox)
        return sandbox

    def begin(self, prompt: Prompt) -> None:
        """Begins another conversation: its first turn answers this prompt. Limits hold for each."""
        attempt = self.attempt
        attempt.first_turn, attempt.resumed_prompt = len(self.turns), ()
        attempt.final_turn = None
        attempt.sampled.add_pictures(prompt.messages)
        attempt.prompt_ids = attempt.chat.prompt_ids(
            prompt.messages, tools=prompt.tools, thinking=self.sampling.thinking
        )

    def room(self, prompt_len: int) -> int:
        """Returns how many tokens the next call may sample; at most 0 if the budget is used up."""
        return self.attempt.room(prompt_len)

    async def sample(
        self, prompt_ids: Sequence[int], *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> Turn:
        """Makes one model call and adds it to `turns`. Calls may overlap. A rollout that begins
        with turns of another one gets those first.

        `max_tokens`: most tokens to sample; None: `room`. `stop`: texts that end the turn, with
        the token that completes one; its `text` ends before that. Raises `BackendError`, and
        `AgentError` after RUN or when there is no room left.
        """
        earlier = self.attempt.earlier(prompt_ids)
        if earlier is not None:
            return earlier
        return await self.attempt.sample(prompt_ids, max_tokens=max_tokens, stop=stop)

    def reply(self, turn: Turn, tools: Sequence[ToolSchema] = ()) -> Reply:
        """Parses a turn into reasoning, text, and calls of `tools`."""
        return self.attempt.reply(turn, tools)

    def next_prompt(self, messages: Sequence[Message]) -> Sequence[int]:
        """Returns the current chain, extended by messages that answer its last turn."""
        ids, chat = self.attempt.ledger.ids, self.attempt.chat
        self.attempt.sampled.add_pictures(messages)
        ids.extend(chat.delta_ids(messages, after=ids[-1], thinking=self.sampling.thinking))
        return self.attempt.prompt_then(len(self.turns) - 1, ids)

    async def calls_begin(self, calls: int) -> None:
        """Call this before a turn's calls whose effects a restart does not take back, with their
        number: another attempt learns that they may have been made."""
        if self.attempt.saver is not None and calls:
            await self.attempt.saver.calls_begin(calls)

    async def turn_ended(self, next_prompt: Sequence[int]) -> None:
        """Call this when all of a turn is done and the next prompt is known: a later process can
        continue from here, with this very prompt. May not return, if the service is about to
        end."""
        await self.attempt.turn_ended(next_prompt)

    async def score(self, function: Callable[P, float], *args: P.args, **kwargs: P.kwargs) -> float:
        """Runs a scoring function in a process that can be killed. Raises `EvaluatorError`; its
        subclass `ScoringAborted` blames the arguments."""
        scoring = self.attempt.scoring
        async with scoring.worker(self.attempt.clock):
            return await scoring.score(function, SCORE_TIMEOUT_S, *args, **kwargs)


def words_of(reply: Reply) -> str:
    """Returns what a reply says in all, for graders: its text, then each text in it if it is a
    JSON object, and in its calls."""
    data = [_object_in(reply.content), *(call.arguments for call in reply.calls)]
    return "\n".join([reply.content, *_texts_in(data)])


def _object_in(text: str) -> JsonValue:
    """Returns the JSON object that is the whole text; None if it is something else."""
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return None
    return cast("JsonValue", found)


def _texts_in(value: JsonValue) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for one in value:
                yield from _texts_in(one)
        case dict():
            yield from _texts_in(list(value.values()))
