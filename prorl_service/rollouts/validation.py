"""The checks of a group before anything is started, and their results."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import JsonValue, ValidationError

from prorl_service.agents.base import AgentHandler, Prompt
from prorl_service.agents.description import is_built_in
from prorl_service.agents.registry import AgentRegistry
from prorl_service.agents.services import OperatorServices
from prorl_service.errors import (
    AgentError,
    InvalidRequest,
    ProRLError,
    TaskError,
    field_problems,
)
from prorl_service.inference.model import ServedModel
from prorl_service.inference.pool import BackendPool
from prorl_service.rollouts.containment import contained, make_handler
from prorl_service.rollouts.record import Admitted
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import (
    MAX_INT32,
    FieldProblem,
    Group,
    Invalid,
    Message,
    Sampling,
    Task,
    TaskProblem,
)
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
            with _blaming(group.task.task_id, f"{where}.task"):
                admitted = self._check(group)
            self._check_start(admitted, f"{where}.start")
            return admitted
        except (InvalidRequest, AgentError) as problem:
            if invalid == "refuse":
                raise
            return Admitted(group, problem=problem.info())

    def problems(
        self, tasks: Sequence[Mapping[str, JsonValue]], sampling: Sampling
    ) -> list[TaskProblem]:
        """Returns why tasks would be refused; an empty list if all can run. Raises
        `BackendUnavailable` before an engine has answered."""
        return [
            problem
            for index, given in enumerate(tasks)
            for problem in self._problems(index, given, sampling)
        ]

    def _problems(
        self, index: int, given: Mapping[str, JsonValue], sampling: Sampling
    ) -> list[TaskProblem]:
        hint, message = "", ""
        try:
            task = Task.model_validate(given)
            self._check(Group(group_id="check", task=task, sampling=sampling))
        except ValidationError as error:
            fields, hint = field_problems(error), nearest_fields(error.errors(), Task)
        except (InvalidRequest, AgentError) as error:
            fields, hint, message = error.fields, error.hint, error.message
        else:
            return []
        task_id = given.get("task_id")
        return [
            TaskProblem(
                index=index,
                task_id=task_id if isinstance(task_id, str) else None,
                field=one.field,
                message=one.message,
                hint=hint,
            )
            for one in fields or [FieldProblem(field="", message=message)]
        ]

    def _check(self, group: Group) -> Admitted:
        """Raises `InvalidRequest`, whose fields are those of the task, and `AgentError`."""
        model = self.backends.model.require()
        agent = self.find_agent(group)
        self._check_image(agent, group)
        handler = self._check_task(group)
        if self.local is not None:
            _check_host(handler)
        services = self.local.services if self.local else None
        ids = prompt_ids(group, handler, model, services)
        return Admitted(group, model.name, ids)

    def _check_start(self, admitted: Admitted, where: str) -> None:
        """Raises `InvalidRequest` if its rollouts cannot begin with the turns that they should."""
        group = admitted.group
        if group.start is None:
            return
        if group.start.share is not None:
            return
        if (trajectory := group.start.trajectory) is None:
            raise InvalidRequest.of_field(
                where,
                f"the turns of the rollout {group.start.rollout_id!r} are not here",
                hint="it is unknown, runs at another service or was not kept whole; "
                "give its `trajectory`",
            )
        if (group.start.turns or 0) >= group.limits.max_turns:
            raise InvalidRequest.of_field(
                where,
                f"{group.start.turns} turns leave none of `limits.max_turns`, which count them",
            )
        known = range(self.backends.model.require().chat.vocab_size or MAX_INT32)
        try:
            pictures = trajectory.contents()
        except ValueError as error:
            raise InvalidRequest.of_field(where, f"its pictures are no base64: {error}") from None
        for segment in trajectory.segments:
            ids = [*segment.prompt_ids, *segment.response_ids]
            if not all(one in known or one in pictures for one in ids):
                raise InvalidRequest.of_field(
                    where, "it has tokens of no vocabulary and no picture"
                )
        first = trajectory.segments[trajectory.turns[0].segment].prompt_ids
        # Other agents write prompts of their own as they run.
        has_this_prompt = self.agents[group.task.agent].restores in ("conversation", "sandbox")
        if has_this_prompt and tuple(first) != admitted.prompt_ids:
            raise InvalidRequest.of_field(
                where,
                "it began with another prompt",
                hint="name a rollout of the same task, by the same agent, model and chat template",
            )

    def check_training(self, group: Group) -> None:
        """Raises `PolicyTaken` and `PolicyUnclaimed` unless its rollouts would be sampled from its
        training's policy. A front has checked the groups that it forwards."""
        if group.training is not None and group.owner is None:
            self.backends.check_training(group.training)

    def prompt(self, group: Group) -> Prompt:
        """The first prompt of its rollouts, and the schemas of all tools, for people. Raises
        `ProRLError` and `ValidationError`: agents change, and so do those that are registered."""
        self.find_agent(group)
        handler = make_handler(self.agents, group.task.model_copy(deep=True))
        with contained(f"{type(handler).__name__}.prompt"):
            prompt = handler.prompt()
        services = self.local.services if self.local else None
        return Prompt(prompt.messages, [*prompt.tools, *_operator_tools(handler, services)])

    def lacks(self, group: Group) -> list[ProRLError]:
        """Returns what this service lacks that an accepted group needs, besides engines."""
        try:
            agent = self.find_agent(group)
            self._check_image(agent, group)
            handler = self._check_task(group)
            if self.local is None:
                return []
            _check_host(handler)
        except (InvalidRequest, AgentError) as problem:
            return [problem]
        return [*self.local.services.lacks(handler.uses)]

    def find_agent(self, group: Group) -> type[AgentHandler]:
        """Raises `InvalidRequest`."""
        try:
            return self.agents[group.task.agent]
        except KeyError:
            raise InvalidRequest.of_field(
                "agent",
                f"no agent {group.task.agent!r}",
                hint=f"this service has: {', '.join(self.agents.names)}; `--agent` adds one",
            ) from None

    def _check_task(self, group: Group) -> AgentHandler:
        try:
            return make_handler(self.agents, group.task.model_copy(deep=True))
        except ValidationError as error:
            agent = self.agents[group.task.agent]
            problems = field_problems(error, "data")
            message = "; ".join(f"{problem.field}: {problem.message}" for problem in problems)
            hint = nearest_fields(error.errors(), agent.data_model) or _schema_hint(agent)
            raise InvalidRequest(message, fields=problems, hint=hint) from None

    def _check_image(self, agent: type[AgentHandler], group: Group) -> None:
        if self.local is None or not agent.sandbox_stages:
            return
        with _field("image"):
            self.local.sandboxes.check(group.task.image)


@contextmanager
def _blaming(task_id: str, where: str) -> Iterator[None]:
    """Says in errors which task is to blame; `where` is the task's place in the request."""
    try:
        yield
    except (InvalidRequest, AgentError) as error:
        problem = type(error)(
            f"task {task_id}: {error.message}",
            hint=error.hint,
            fields=[
                FieldProblem(field=f"{where}.{one.field}", message=one.message)
                for one in error.fields
            ],
        )
        raise problem from error.__cause__


def prompt_ids(
    group: Group, handler: AgentHandler, model: ServedModel, services: OperatorServices | None
) -> tuple[int, ...]:
    """Returns the ids of the prompt. Raises `InvalidRequest` if it leaves no room to sample, or for
    tools that are missing."""
    with contained(f"{type(handler).__name__}.prompt"):
        prompt = handler.prompt()
    tools = [*prompt.tools, *_operator_tools(handler, services)]
    _check_names(tools)
    if _pictures(prompt.messages) != _pictures(group.task.messages):
        raise InvalidRequest.of_field("messages", f"the agent {group.task.agent} takes no pictures")
    ids = model.chat.prompt_ids(prompt.messages, tools=tools, thinking=group.sampling.thinking)
    if len(ids) >= model.max_model_len:
        raise InvalidRequest.of_field(
            "messages",
            f"the prompt has {len(ids)} tokens, the model takes {model.max_model_len}",
            hint="shorten the prompt; at least one token must be left to sample",
        )
    return tuple(ids)


def _pictures(messages: Sequence[Message]) -> list[str]:
    return [picture.data for message in messages for picture in message.pictures]


@contextmanager
def _field(name: str) -> Iterator[None]:
    """Blames a field of the task for what is refused."""
    try:
        yield
    except (TaskError, InvalidRequest) as error:
        raise InvalidRequest.of_field(name, error.message, hint=error.hint) from None


def _check_host(handler: AgentHandler) -> None:
    with _field("data"):
        handler.check_host()


def _operator_tools(handler: AgentHandler, services: OperatorServices | None) -> list[ToolSchema]:
    if services is None:
        return []
    with _field("data"):
        return [function_schema(tool) for tool in services.tools(handler.uses)]


def _check_names(tools: Sequence[ToolSchema]) -> None:
    for name, times in Counter(tool["function"]["name"] for tool in tools).items():
        if times > 1:
            raise InvalidRequest.of_field(
                "data",
                f"{times} tools are called {name!r}",
                hint="choose other MCP servers, or have fewer of their tools offered: "
                "`prorl serve --mcp-tools`",
            )


def _schema_hint(agent: type[AgentHandler]) -> str:
    about = f"`data` of the agent {agent.name!r}"
    if is_built_in(agent):
        return f"{about}: docs/reference/task_data.md"
    path = f"{agent.__module__}:{agent.__qualname__}"
    if agent.data_model is None:
        return f"{about}: see {path}"
    fields = ", ".join(agent.data_model.model_fields)
    schema = f"`prorl check --agent {path} --schema`"
    return f"{about} has {fields}; {schema} and `GET /v1/agents` have its schema"
