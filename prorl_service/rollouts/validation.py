"""The checks of a group before anything is started, and their results."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from prorl_service.agents.base import AgentHandler, Prompt
from prorl_service.agents.registry import AgentRegistry
from prorl_service.agents.services import OperatorServices
from prorl_service.errors import AgentError, InvalidRequest, ProRLError, TaskError
from prorl_service.inference.model import ServedModel
from prorl_service.inference.pool import BackendPool
from prorl_service.rollouts.containment import contained, make_handler
from prorl_service.rollouts.record import Admitted
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import FieldProblem, Group, Invalid
from prorl_service.schemas.suggestions import nearest_fields
from prorl_service.tokens.formats import ToolSchema
from prorl_service.tools.base import function_schema


@dataclass(frozen=True, slots=True)
class Local:
    """Sandboxes and services with which this process runs rollouts."""

    sandboxes: SandboxProvider
    services: OperatorServices


@dataclass(frozen=True, slots=True)
class Validator:
    agents: AgentRegistry
    backends: BackendPool
    local: Local | None
    """Sandboxes and services of this process; None if other services run the rollouts."""

    def check_all(
        self, groups: Sequence[tuple[int, Group]], invalid: Invalid = "refuse"
    ) -> list[Admitted]:
        """Checks groups, given with their places in the request. Tokenising thousands of prompts
        takes seconds."""
        return [self._admit(group, f"groups.{place}", invalid) for place, group in groups]

    def _admit(self, group: Group, where: str, invalid: Invalid) -> Admitted:
        try:
            return self._check(group, where)
        except (InvalidRequest, AgentError) as problem:
            if invalid == "refuse":
                raise
            return Admitted(group, problem=problem.info())

    def _check(self, group: Group, where: str) -> Admitted:
        model = self.backends.model.require()
        agent = self.find_agent(group, where)
        self._check_image(agent, group, where)
        handler = _check_task(agent, group, where)
        if self.local is not None:
            _check_host(handler, where)
        services = self.local.services if self.local else None
        ids = prompt_ids(group, handler, model, services, where)
        return Admitted(group, model.name, ids)

    def check_training(self, group: Group) -> None:
        """Raises `PolicyTaken` and `PolicyUnclaimed` unless its rollouts would be sampled from its
        training's policy. A front has checked the groups that it forwards."""
        if group.training is not None and group.owner is None:
            self.backends.check_training(group.training)

    def prompt(self, group: Group) -> Prompt:
        """The first prompt of its rollouts, and the schemas of all tools, for people. Raises
        `ProRLError` and `ValidationError`: agents change, and so do those that are registered."""
        where = group.group_id
        handler = make_handler(self.find_agent(group, where), group.task.model_copy(deep=True))
        with contained(f"{type(handler).__name__}.prompt"):
            prompt = handler.prompt()
        services = self.local.services if self.local else None
        return Prompt(prompt.messages, [*prompt.tools, *_operator_tools(handler, services, where)])

    def lacks(self, group: Group) -> list[ProRLError]:
        """Returns what this service lacks that an accepted group needs, besides engines."""
        where = "data"
        try:
            agent = self.find_agent(group, where)
            self._check_image(agent, group, where)
            handler = _check_task(agent, group, where)
            if self.local is None:
                return []
            _check_host(handler, where)
        except (InvalidRequest, AgentError) as problem:
            return [problem]
        return [*self.local.services.lacks(handler.uses)]

    def find_agent(self, group: Group, where: str) -> type[AgentHandler]:
        """Raises `InvalidRequest`."""
        try:
            return self.agents[group.task.agent]
        except KeyError:
            raise InvalidRequest.of_field(
                f"{where}.task.agent",
                f"no agent {group.task.agent!r}",
                hint=f"this service has: {', '.join(self.agents.names)}; `--agent` adds one",
            ) from None

    def _check_image(self, agent: type[AgentHandler], group: Group, where: str) -> None:
        if self.local is None or not agent.sandbox_stages:
            return
        try:
            self.local.sandboxes.check(group.task.image)
        except TaskError as error:
            field = f"{where}.task.image"
            raise InvalidRequest.of_field(field, error.message, hint=error.hint) from None


def prompt_ids(
    group: Group,
    handler: AgentHandler,
    model: ServedModel,
    services: OperatorServices | None,
    where: str,
) -> tuple[int, ...]:
    """Returns the ids of the prompt. Raises `InvalidRequest` if it leaves no room to sample, or for
    tools that are missing."""
    with contained(f"{type(handler).__name__}.prompt"):
        prompt = handler.prompt()
    tools = [*prompt.tools, *_operator_tools(handler, services, where)]
    _check_names(tools, where)
    ids = model.chat.prompt_ids(prompt.messages, tools=tools, thinking=group.sampling.thinking)
    if len(ids) >= model.max_model_len:
        raise InvalidRequest.of_field(
            f"{where}.task.messages",
            f"the prompt has {len(ids)} tokens, the model takes {model.max_model_len}",
            hint="shorten the prompt; at least one token must be left to sample",
        )
    return tuple(ids)


def _check_host(handler: AgentHandler, where: str) -> None:
    try:
        handler.check_host()
    except TaskError as error:
        field = f"{where}.task.data"
        raise InvalidRequest.of_field(field, error.message, hint=error.hint) from None


def _operator_tools(
    handler: AgentHandler, services: OperatorServices | None, where: str
) -> list[ToolSchema]:
    if services is None:
        return []
    try:
        return [function_schema(tool) for tool in services.tools(handler.uses)]
    except InvalidRequest as missing:
        field = f"{where}.task.data"
        raise InvalidRequest.of_field(field, missing.message, hint=missing.hint) from None


def _check_names(tools: Sequence[ToolSchema], where: str) -> None:
    for name, times in Counter(tool["function"]["name"] for tool in tools).items():
        if times > 1:
            raise InvalidRequest.of_field(
                f"{where}.task.data",
                f"{times} tools are called {name!r}",
                hint="choose other MCP servers, or have fewer of their tools offered: "
                "`prorl serve --mcp-tools`",
            )


def _check_task(agent: type[AgentHandler], group: Group, where: str) -> AgentHandler:
    try:
        return make_handler(agent, group.task.model_copy(deep=True))
    except ValidationError as error:
        problems = [
            FieldProblem(
                field=".".join([f"{where}.task.data", *map(str, problem["loc"])]),
                message=problem["msg"],
            )
            for problem in error.errors(include_url=False)
        ]
        message = "; ".join(f"{problem.field}: {problem.message}" for problem in problems)
        hint = nearest_fields(error.errors(), agent.data_model)
        hint = hint or f"`data` of the agent {agent.name!r}: docs/reference/task_data.md"
        raise InvalidRequest(message, fields=problems, hint=hint) from None
