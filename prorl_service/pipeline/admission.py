"""What is checked of a group before anything is started, and what the checks make of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from prorl_service.agents.base import AgentHandler
from prorl_service.agents.registry import AgentRegistry
from prorl_service.errors import InvalidRequest, TaskError
from prorl_service.inference.pool import BackendPool
from prorl_service.inference.served import ServedModel
from prorl_service.pipeline.record import Admitted
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import FieldProblem, Group


@dataclass(frozen=True, slots=True)
class Admission:
    agents: AgentRegistry
    backends: BackendPool
    sandboxes: SandboxProvider

    def check_all(self, groups: Sequence[tuple[int, Group]]) -> list[Admitted]:
        """With their places in the request. Tokenising thousands of prompts takes seconds."""
        return [self._check(group, f"groups.{place}") for place, group in groups]

    def _check(self, group: Group, where: str) -> Admitted:
        model = self.backends.model.require()
        agent = self.find_agent(group, where)
        self._check_image(agent, group, where)
        handler = _check_task(agent, group, where)
        return Admitted(group, agent, model.name, prompt_ids(group, handler, model, where))

    def find_agent(self, group: Group, where: str) -> type[AgentHandler]:
        """Raises `InvalidRequest`."""
        try:
            return self.agents[group.task.agent]
        except KeyError:
            raise InvalidRequest.of_field(
                f"{where}.task.agent",
                f"no agent {group.task.agent!r}",
                hint=f"this service has: {', '.join(self.agents.names)}",
            ) from None

    def _check_image(self, agent: type[AgentHandler], group: Group, where: str) -> None:
        if not agent.sandbox_stages:
            return
        try:
            self.sandboxes.check(group.task.image)
        except TaskError as error:
            field = f"{where}.task.image"
            raise InvalidRequest.of_field(field, error.message, hint=error.hint) from None


def prompt_ids(group: Group, handler: AgentHandler, model: ServedModel, where: str) -> list[int]:
    """Raises `InvalidRequest` for a prompt that leaves no room to sample."""
    prompt = handler.prompt()
    ids = model.chat.prompt_ids(
        prompt.messages, tools=prompt.tools, thinking=group.sampling.thinking
    )
    if len(ids) >= model.max_model_len:
        raise InvalidRequest.of_field(
            f"{where}.task.messages",
            f"the prompt has {len(ids)} tokens, the model takes {model.max_model_len}",
            hint="shorten the prompt; at least one token must be left to sample",
        )
    return ids


def _check_task(agent: type[AgentHandler], group: Group, where: str) -> AgentHandler:
    try:
        return agent(group.task)
    except ValidationError as error:
        problems = [
            FieldProblem(
                field=".".join([f"{where}.task.data", *map(str, problem["loc"])]),
                message=problem["msg"],
            )
            for problem in error.errors(include_url=False)
        ]
        message = "; ".join(f"{problem.field}: {problem.message}" for problem in problems)
        raise InvalidRequest(message, fields=problems) from None
