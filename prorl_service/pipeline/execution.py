"""One attempt at a rollout in this process, from INIT to the end of EVAL.

Holds the agent's progress and resources. `rollouts.record` says how a rollout ends; a front has no
executions, since its rollouts are executed elsewhere.
"""

import asyncio
import logging
from dataclasses import dataclass

from prorl_service.agents.base import AgentHandler, RolloutContext, Verdict
from prorl_service.rollouts.progress import Progress
from prorl_service.rollouts.record import RolloutRecord, unwritable
from prorl_service.schemas import Blame, ErrorInfo, FinishReason, Rollout, RolloutState
from prorl_service.utils.budget import WorkClock

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Execution:
    handler: AgentHandler
    context: RolloutContext
    finish_reason: FinishReason = FinishReason.ERROR
    verdict: Verdict | None = None
    _releasing: asyncio.Task[None] | None = None

    @property
    def clock(self) -> WorkClock:
        return self.context.clock

    def waits_for(self) -> Blame | None:
        """Returns what to blame for the handler's wait, if the context knows."""
        return Blame.BACKEND if self.context.calls_model else None

    def progress(self) -> Progress:
        return Progress(self.context.turns, self.context.ledger, self.context.sampling)

    async def release(self) -> None:
        """Frees sandboxes and backend pin. Continues when the caller is cancelled; never raises."""
        if self._releasing is None:
            self._releasing = asyncio.create_task(self._close())
        await asyncio.shield(self._releasing)
        self._releasing = None

    async def _close(self) -> None:
        try:
            await self.context.resources.aclose()
        except Exception:  # a sandbox that cannot be stopped must not cost the rollout its result
            log.exception("rollout %s: releasing its resources failed", self.context.rollout_id)

    def answer(
        self, record: RolloutRecord, state: RolloutState, error: ErrorInfo | None = None
    ) -> Rollout:
        """Returns the answer of `record` at its end, trajectory included; a failure if a handler's
        odd values do not fit into an answer."""
        answer = record.answer(state, error)
        try:
            return self._with_result(answer)
        except Exception as problem:
            log.exception("rollout %s: its answer cannot be written", record.rollout_id)
            return unwritable(answer, problem)

    def _with_result(self, answer: Rollout) -> Rollout:
        """Returns `answer` with the result. Sets the versions in `answer` itself, so that a failure
        keeps them."""
        versions = self.context.ledger.versions
        answer.oldest_policy_version = min(versions, default=None)
        answer.newest_policy_version = max(versions, default=None)
        if self.verdict is not None and answer.state is RolloutState.DONE:
            answer = _graded(answer, self.verdict)
        if self.context.turns:
            answer.trajectory = self.context.trajectory(self.finish_reason)
        return answer


def _graded(answer: Rollout, verdict: Verdict) -> Rollout:
    """Returns `answer` with the verdict. Validates the scores; the report has been validated."""
    scores = {"reward": verdict.reward, "reward_components": verdict.components}
    graded = Rollout.model_validate(dict(answer) | scores)
    graded.report = verdict.report
    return graded
