"""An agent of which a fifth of the rollouts fail, by each blame in turn."""

from typing import ClassVar

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.errors import (
    AgentError,
    BackendRejected,
    EvaluatorError,
    ProRLError,
    SandboxError,
    TaskError,
)
from tests.trl.letters import LettersAgent

SHARE = 5
ERRORS = (AgentError, BackendRejected, EvaluatorError, SandboxError, TaskError, ProRLError)


class FaultyAgent(LettersAgent):
    name: ClassVar[str] = "letters"

    async def eval(self, rollout: RolloutContext) -> Verdict:
        number = sum(rollout.rollout_id.encode())
        if number % SHARE == 0:
            raise ERRORS[number // SHARE % len(ERRORS)]("injected")
        return await super().eval(rollout)
