"""One attempt at a rollout with its agent, from INIT to the end of EVAL, and its result.

`rollouts.record` says how a rollout ends; a front has no executions, since other services run its
rollouts.
"""

from dataclasses import dataclass

from prorl_service.agents.base import AgentHandler, RolloutContext, Verdict
from prorl_service.gateway.attempt import Attempt
from prorl_service.schemas import Blame, FinishReason, Rollout, RolloutState


@dataclass(slots=True, eq=False)
class Execution:
    handler: AgentHandler
    context: RolloutContext
    finish_reason: FinishReason = FinishReason.ERROR
    verdict: Verdict | None = None

    @property
    def attempt(self) -> Attempt:
        return self.context.attempt

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
        if self.attempt.turns:
            answer.trajectory = self.attempt.sampled.trajectory(self.finish_reason)
        return answer
