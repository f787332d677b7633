"""Options of `prorl try`: its task, where replies come from, and where the results go."""

import dataclasses
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter
from pydantic import ValidationError
from pydantic.dataclasses import dataclass

from prorl_service.cli.harnesses import known
from prorl_service.cli.person import Person
from prorl_service.cli.service import connected
from prorl_service.client.harness import with_harness, with_program
from prorl_service.errors import ProRLError, problems_of
from prorl_service.schemas import BackendSpec, Limits, Rollout, Sampling, Start, Task
from prorl_service.schemas.base import WireModel
from prorl_service.schemas.suggestions import nearest_fields
from prorl_service.server.settings import (
    EngineOptions,
    JudgeOptions,
    McpOptions,
    NemoGymOptions,
    OpenEnvOptions,
    SandboxOptions,
    ServiceSettings,
    UserOptions,
    panel,
)
from prorl_service.testing.replies import Reply, read
from prorl_service.testing.scripted_engine import ScriptedEngine, scripted_engine
from prorl_service.utils import files


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions(EngineOptions):
    backend: Annotated[tuple[str, ...], Parameter(name="--engine")] = ()
    """URL of an inference engine (vLLM, SGLang or `prorl engine`), or 'openai:MODEL@URL' for a
    model behind an API."""
    replies: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None
    """File with replies, instead of an engine: texts separated by lines of '---', or, in a .jsonl
    file, messages or saved rollouts; '-': you type them."""
    reply_format: str | None = None
    """Format of the model's reasoning and tool calls (default: as its chat template writes)."""

    def specs(self) -> tuple[BackendSpec, ...]:
        """Raises `ProRLError`, which names the option as this command does."""
        try:
            return EngineOptions.specs(self)
        except ProRLError as error:
            message = error.message.replace("--backend: url:", "--engine:")
            message = message.replace("--backend:", "--engine:")
            raise ProRLError(message, hint=error.hint) from None

    @property
    def are_typed(self) -> bool:
        return self.replies == Path("-")

    def source(self) -> "ReplySource":
        """Removes the key from the environment in any case. Raises `ProRLError`."""
        specs = self.specs()
        if bool(specs) == (self.replies is not None):
            raise ProRLError(
                "give either --engine or --replies",
                hint="--engine http://localhost:8000, or --replies FILE with the model's replies",
            )
        file = None if self.are_typed else self.replies
        return ReplySource(self, specs, () if file is None else read(file))


@dataclasses.dataclass(frozen=True, slots=True)
class ReplySource:
    """The user's engines, or scripts for an engine of ours."""

    options: ModelOptions
    specs: Sequence[BackendSpec]
    scripts: Sequence[Sequence[Reply]]

    @asynccontextmanager
    async def engines(self) -> AsyncIterator[tuple[Sequence[BackendSpec], ScriptedEngine | None]]:
        """Starts the scripted engine, if there are scripts. Raises `ProRLError`."""
        if self.options.are_typed:
            async with Person() as person:
                yield [person.spec], None
            return
        if not self.scripts:
            yield self.specs, None
            return
        options = self.options
        async with scripted_engine(
            self.scripts, tokenizer=options.tokenizer, reply_format=options.reply_format
        ) as engine:
            yield [engine.spec], engine

    def describe(self, model: str) -> str:
        """Describes where replies come from. `model` is the engine's."""
        if self.options.are_typed:
            return "replies that you type"
        if not self.scripts:
            return f"model {model}"
        return f"replies of {self.options.replies}, tokens: {self.options.tokenizer or 'bytes'}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """What tasks may need of the service inside this process."""

    sandboxes: Annotated[SandboxOptions, panel("Sandboxes")] = SandboxOptions()
    mcp: Annotated[McpOptions, panel("Tools and judge")] = McpOptions()
    nemo_gym: Annotated[NemoGymOptions, panel("Tools and judge")] = NemoGymOptions()
    openenv: Annotated[OpenEnvOptions, panel("Tools and judge")] = OpenEnvOptions()
    judge: Annotated[JudgeOptions, panel("Tools and judge")] = JudgeOptions()
    user: Annotated[UserOptions, panel("Tools and judge")] = UserOptions()

    def settings(self) -> ServiceSettings:
        return ServiceSettings(
            **{one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    full: bool = False
    """Show prompts and tool output in full."""
    json: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None
    """File for the rollouts, one JSON object per line; '-' is standard output."""
    verbose: bool = False
    """Show the service's log as well."""

    def check(self) -> None:
        """Raises `ProRLError`."""
        if self.json is not None and not os.access(self.json.parent, os.W_OK):
            raise ProRLError(f"--json {self.json}: cannot write to {self.json.parent}")

    def save(self, ended: Sequence[Rollout]) -> None:
        """Raises `ProRLError`."""
        if self.json is None or not ended:
            return
        text = "".join(f"{one.model_dump_json()}\n" for one in ended)
        if self.json == Path("-"):
            print(text, end="", flush=True)
            return
        try:
            files.write_whole(self.json, text)
        except OSError as error:
            raise ProRLError(f"--json {self.json}: {error.strerror}") from None


# --- the task -----------------------------------------------------------------------------------

Options = TypeVar("Options", Sampling, Limits)

IN_GROUPS = ("group_id", "n", "priority", "client", "lease_s", "owner", "solution")
"""Fields beside a task that do not matter to one rollout."""


class GivenTask(WireModel):
    task: Task
    sampling: Sampling = Sampling()
    limits: Limits = Limits()


def read_task(given: str, agent: str | None, task_id: str | None = None) -> GivenTask:
    """Reads a task, a group with a task, sampling and limits, or a request with one group. A JSONL
    file has tasks; `task_id` chooses one, by default the first. The agent is `agent`, or the task's
    own if that is None; a task's `task_id` may be missing.

    Raises `ProRLError`."""
    where, text = _text(given)
    if given.endswith(".jsonl"):
        value = _row(where, text, task_id)
    elif task_id is not None:
        raise ProRLError("--id chooses from a JSONL file", hint="--task tasks.jsonl --id TASK_ID")
    else:
        value = _object(where, text)
    group = _group(value)
    parts = {name: part for name, part in group.items() if name not in IN_GROUPS}
    task = {"task_id": "try", **parts.pop("task")}
    if agent is not None:
        task["agent"] = agent
    elif "agent" not in task:
        raise ProRLError(f"{where} names no agent", hint="name it: prorl try math --task …")
    try:
        return GivenTask.model_validate({**parts, "task": task})
    except ValidationError as error:
        hint = nearest_fields(error.errors(), GivenTask)
        raise ProRLError(f"{where}: {problems_of(error)}", hint=hint) from None


def read_branch(
    url: str, rollout_id: str, turns: int, agent: str | None
) -> tuple[GivenTask, Start]:
    """Returns the task of a service's rollout, and its first turns. Raises `ProRLError`."""
    with connected(url) as client:
        text, rollout = client.text(rollout_id), client.get(rollout_id)
    content = {"rollout_id": rollout_id, "turns": turns, "trajectory": rollout.trajectory}
    try:
        start = Start.model_validate(content)
    except ValidationError as error:
        raise ProRLError(f"--from {rollout_id}: {problems_of(error)}") from None
    if agent is not None:
        text.task.agent = agent
    return GivenTask(task=text.task, sampling=text.sampling, limits=text.limits), start


def _object(where: str, text: str) -> dict[str, Any]:
    """Raises `ProRLError`."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ProRLError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProRLError(f"{where} is not a JSON object", hint="give one task")
    return value


def _row(where: str, text: str, task_id: str | None) -> dict[str, Any]:
    """Returns the first row, or the one of a task. Raises `ProRLError`."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            row = _object(f"{where}, line {number}", line)
            if task_id in (None, _group(row)["task"].get("task_id")):
                return row
    wanted = "row" if task_id is None else f"task {task_id!r}"
    raise ProRLError(f"{where} has no {wanted}")


def _group(value: dict[str, Any]) -> dict[str, Any]:
    match value:
        case {"groups": [{"task": {}}]}:
            return dict(value["groups"][0])
        case {"task": {}}:
            return value
    return {"task": value}


def with_program_of(harness: str, task: Task) -> Task:
    """Puts a preset, or a Python file, in the place of the agent's loop. Raises `ProRLError`."""
    if not harness.endswith(".py"):
        return with_harness(task, known(harness))
    try:
        program = Path(harness).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ProRLError(f"--harness {harness}: {error}") from None
    return with_program(task, program)


def overridden(options: Options, by: Options) -> Options:
    """Returns `options` with the given ones of `by`. Valid, since no field depends on another."""
    return options.model_copy(update={name: getattr(by, name) for name in by.model_fields_set})


def _text(given: str) -> tuple[str, str]:
    """Returns the source's name and its text. Raises `ProRLError`."""
    if given.lstrip().startswith("{"):
        return "--task", given
    where = f"--task {given}"
    try:
        return where, sys.stdin.read() if given == "-" else Path(given).read_text()
    except OSError as error:
        raise ProRLError(f"{where}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ProRLError(f"{where}: {error}") from None
