"""One attempt at a rollout with its agent, its result, and the turns that it begins with."""

from array import array
from dataclasses import dataclass, replace

from prorl_service.agents.base import AgentHandler, RolloutContext, Verdict
from prorl_service.attempt import Attempt
from prorl_service.errors import TaskError
from prorl_service.inference.cache_budget import CachePlace
from prorl_service.inference.session import RolloutSession
from prorl_service.schemas import (
    NOT_SAMPLED,
    Blame,
    FinishReason,
    Message,
    Replay,
    Rollout,
    RolloutState,
    Start,
    Turn,
)
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.ledger import Ledger
from prorl_service.tokens.replay import EarlierTurn, TurnReplay, of_rollout


@dataclass(slots=True, eq=False)
class Execution:
    """One attempt at a rollout with its agent, from INIT to the end of EVAL, and its result."""

    handler: AgentHandler
    context: RolloutContext
    session: RolloutSession
    start: Start | None = None
    """Turns of another rollout that it begins with."""
    finish_reason: FinishReason = FinishReason.ERROR
    verdict: Verdict | None = None

    @property
    def attempt(self) -> Attempt:
        return self.context.attempt

    async def until_admitted(self, group: str) -> None:
        """Waits until the engines' cache has room for the rollout."""
        attempt, prompt_tokens = self.attempt, len(self.attempt.prompt_ids)
        room = attempt.max_model_len - prompt_tokens
        place = CachePlace(
            attempt.task.agent,
            group,
            prompt_tokens,
            min(room, attempt.limits.max_response_tokens or room),
            max(0, len(attempt.ledger.ids) - prompt_tokens),
        )
        await self.session.enter(place)

    def waits_for(self) -> Blame | None:
        """Returns what to blame for the handler's wait, if the attempt knows."""
        return Blame.BACKEND if self.attempt.calls_model else None

    def add_result(self, answer: Rollout) -> Rollout:
        """Returns `answer` with the result. Sets the versions in `answer` itself, so that a failure
        keeps them. Raises if a handler's odd values do not fit into an answer."""
        versions = self.attempt.ledger.versions
        answer.oldest_policy_version = min(versions, default=None)
        answer.newest_policy_version = max(versions, default=None)
        if self.verdict is not None and answer.state is RolloutState.DONE:
            scores = {"reward": self.verdict.reward, "reward_components": self.verdict.components}
            answer = Rollout.model_validate(dict(answer) | scores)
            answer.report = self.verdict.report  # it has been validated
            self.attempt.sampled.reward_turns(self.verdict.turn_rewards)
        if self.start is not None:
            replayed = [turn for turn in self.attempt.turns if turn.is_replayed]
            answer.replay = Replay(
                rollout_id=self.start.rollout_id,
                turns=len(replayed),
                differing=sum(turn.results_differ for turn in replayed),
            )
        if self.attempt.turns:
            answer.trajectory = self.attempt.sampled.trajectory(self.finish_reason)
        return answer


def replay_of(start: Start, handler: AgentHandler, chat: ChatFormat) -> TurnReplay:
    """Returns what gives a rollout its first turns, and raises `TaskError` if it cannot. Raises
    `InvalidRequest` for a solution that the model cannot write."""
    if (trajectory := start.trajectory) is not None:
        count = start.turns or 0
        turns = of_rollout(Ledger.seen(trajectory.segments), trajectory.turns)
    else:
        replies = start.replies or handler.solved_by(handler.task.solution)
        count = round((start.share or 0) * (len(replies) - 1))
        turns = [_written(reply, chat) for reply in replies]

    def check(given: int) -> None:
        if given < count:
            raise TaskError(
                f"the rollout cannot begin with {count} turns of another one: after {given} of "
                "them its agent asked for something else than then, or ended",
                hint="they must be of the same task, agent, model and chat template",
            )

    turns = [replace(one, turn=_replayed(one.turn)) for one in turns]
    return TurnReplay(turns, check, count=count)


def _replayed(turn: Turn) -> Turn:
    """Returns a copy without what sampling cost, and when: nothing of it is this rollout's."""
    calls = [one.model_copy(update={"started_at": None}) for one in turn.tool_calls]
    free: dict[str, object] = {
        "is_replayed": True,
        "tool_calls": calls,
        "model_s": 0.0,
        "waited_s": 0.0,
        "started_at": None,
        "times": None,
        "cached_tokens": 0,
        "reward": None,
    }
    copied: Turn = turn.model_copy(update=free)
    return copied


def _written(reply: str | Message, chat: ChatFormat) -> EarlierTurn:
    ids = array("i", chat.reply_ids(reply))
    text = chat.decode(ids, stopped=True)
    turn = Turn(
        segment=0, start=0, stop=len(ids), text=text, finish_reason="stop", model_s=0, backend=""
    )
    unsampled = array("f", bytes(4 * len(ids))), array("i", [NOT_SAMPLED]) * len(ids)
    return EarlierTurn(turn, None, (ids, *unsampled))
