"""The base of agents of tests that open no sandbox: a task's messages are their prompt."""

from typing import ClassVar

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext
from prorl_service.schemas import Stage


class BareAgent(AgentHandler):
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset()

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        return
