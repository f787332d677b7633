"""One attempt at a rollout with its agent, its result, and the turns that it begins with."""

from dataclasses import dataclass

from prorl_service.agents.base import AgentHandler, RolloutContext, Verdict
from prorl_service.attempt import Attempt
from prorl_service.errors import TaskError
from prorl_service.inference.cache_budget import CachePlace
from prorl_service.inference.session import RolloutSession
from prorl_service.schemas import Blame, FinishReason, Replay, Rollout, RolloutState, Start
from prorl_service.tokens.ledger import Ledger
from prorl_service.tokens.replay import TurnReplay


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


def replay_of(start: Start) -> TurnReplay:
    """Returns what gives a rollout these turns, and raises `TaskError` if it cannot."""
    trajectory = start.trajectory
    assert trajectory is not None  # `Validator` admits no other

    def check(given: int) -> None:
        if given < start.turns:
            raise TaskError(
                f"the rollout cannot begin with {start.turns} turns of another one: after {given} "
                "of them its agent asked for something else than then, or ended",
                hint="they must be of the same task, agent, model and chat template",
            )

    # Nothing of them is sampled by this rollout; the last one is the turn to be sampled.
    free = {"is_replayed": True, "model_s": 0.0, "waited_s": 0.0, "times": None, "cached_tokens": 0}
    turns = [turn.model_copy(update=free, deep=True) for turn in trajectory.turns]
    return TurnReplay(Ledger.seen(trajectory.segments), turns, check, count=start.turns)
