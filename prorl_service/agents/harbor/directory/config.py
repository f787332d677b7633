"""`task.toml` of a Harbor task, schema 1.4 and older, as the wheel harbor 0.25.0 reads it.

Keys that this service cannot honour are refused by name; keys that nobody knows are left out, as
Harbor does, and listed. Reads no other file.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from prorl_service.agents.harbor.data import Healthcheck
from prorl_service.errors import TaskError, problems_of
from prorl_service.sandbox.egress.policy import HostEntry

MAIN = "main"
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([GMK])", re.IGNORECASE)
_MB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


class _Table(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Phase(_Table):
    network_mode: Literal["public", "no-network", "allowlist"] | None = None
    allowed_hosts: list[HostEntry] = []

    @model_validator(mode="after")
    def _has_hosts_of_a_list(self) -> Self:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
        return self


class HealthTable(Healthcheck):
    """A health check whose keys end with `_sec`, as Harbor's do."""

    model_config = ConfigDict(
        extra="allow", alias_generator=lambda name: re.sub("_s$", "_sec", name)
    )


class McpServer(_Table):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    transport: Literal["stdio", "sse", "streamable-http", "http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    headers: dict[str, str] = {}

    @model_validator(mode="after")
    def _has_target(self) -> "McpServer":
        if self.transport == "stdio" and not self.command:
            raise ValueError("transport 'stdio' needs a command")
        return self


class Environment(_Phase):
    build_timeout_sec: float = 600.0
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = Field(None, gt=0)
    memory_mb: int | None = Field(None, gt=0)
    storage_mb: int | None = Field(None, gt=0)
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[McpServer] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: HealthTable | None = None
    workdir: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_older_schemas(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if old in data:
                data.setdefault(new, _megabytes(data.pop(old)))
        allow = data.pop("allow_internet", None)
        if allow is False:
            data.setdefault("network_mode", "no-network")
        return data


class Collect(_Table):
    command: str
    service: str = MAIN
    timeout_sec: float = Field(60.0, gt=0)
    user: str | int | None = None


class Verifier(_Phase):
    timeout_sec: float = Field(600.0, gt=0)
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[Collect] = []
    # Our own keys, which Harbor leaves out.
    reward_if_absent: float | None = Field(None, allow_inf_nan=False)
    work: list[str] = []
    isolated: bool = True

    @model_validator(mode="after")
    def _has_one_mode(self) -> "Verifier":
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode 'shared' and an environment contradict each other")
        return self

    @property
    def mode(self) -> Literal["shared", "separate"] | None:
        """The mode that is said or implied here; None: another level says it."""
        if self.environment_mode is None and self.environment is not None:
            return "separate"
        return self.environment_mode


class Agent(_Phase):
    timeout_sec: float | None = Field(None, gt=0)
    user: str | int | None = None


class Artifact(_Table):
    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_a_path(cls, data: Any) -> Any:
        return {"source": data} if isinstance(data, str) else data

    @field_validator("source")
    @classmethod
    def _stays_inside(cls, source: str) -> str:
        if ".." in source.split("/"):
            raise ValueError("must not contain '..'")
        return source


class StepTable(_Table):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: HealthTable | None = None
    artifacts: list[Artifact] = []


class Solution(_Table):
    env: dict[str, str] = {}


class TaskToml(_Table):
    schema_version: str = "1.4"
    task: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    source: str | None = None
    verifier: Verifier = Verifier()
    agent: Agent = Agent()
    environment: Environment = Environment()
    solution: Solution = Solution()
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    steps: list[StepTable] = []
    artifacts: list[Artifact] = []

    @model_validator(mode="before")
    @classmethod
    def _of_older_schemas(cls, data: Any) -> Any:
        if isinstance(data, dict) and "version" in data:
            data = dict(data)
            data.setdefault("schema_version", data.pop("version"))
        return data

    @field_validator("steps")
    @classmethod
    def _have_own_names(cls, steps: list[StepTable]) -> list[StepTable]:
        if len({step.name.casefold() for step in steps}) < len(steps):
            raise ValueError("two steps have the same name")
        return steps


def read(file: Path) -> TaskToml:
    """Raises `TaskError` that names the key."""
    try:
        data = tomllib.loads(file.read_text())
    except OSError as error:
        raise TaskError(f"{file}: {error.strerror}", hint="is it a task directory?") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"{file}: {error}") from None
    try:
        found = TaskToml.model_validate(data)
    except ValidationError as error:
        raise TaskError(f"{file}: {problems_of(error)}") from None
    if problem := next(_refused(found), None):
        raise TaskError(f"{file}: {problem}")
    return found


def unknown_keys(table: BaseModel, at: str = "") -> Iterator[str]:
    """Yields the keys that no release up to 0.25.0 knows."""
    yield from (f"{at}{name}" for name in table.model_extra or ())
    for name in type(table).model_fields:
        value = getattr(table, name)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, BaseModel):
                yield from unknown_keys(one, f"{at}{name}.")


def _refused(found: TaskToml) -> Iterator[str]:
    """Yields what this service cannot do, by the names of its keys."""
    yield from _of_environment("environment", found.environment)
    for step in found.steps:
        if step.agent.network_mode not in (None, found.agent.network_mode):
            yield f"steps.{step.name}.agent.network_mode: all steps are of one sandbox"
    verifiers = {"verifier": found.verifier} | {
        f"steps.{step.name}.verifier": step.verifier for step in found.steps
    }
    for at, verifier in verifiers.items():
        if verifier.environment is not None:
            yield from _of_environment(f"{at}.environment", verifier.environment)
            if verifier.environment.mcp_servers:
                yield f"{at}.environment.mcp_servers: a verifier calls no tools"
        for hook in verifier.collect:
            if hook.service != MAIN:
                yield f"{at}.collect.service = {hook.service!r}: there is one service, 'main'"
            if hook.user is not None:
                yield f"{at}.collect.user: a hook runs as the agent's user"
    for artifact in [*found.artifacts, *(one for step in found.steps for one in step.artifacts)]:
        if artifact.service not in (None, MAIN):
            yield f"artifacts.service = {artifact.service!r}: there is one service, 'main'"


def _of_environment(at: str, environment: Environment) -> Iterator[str]:
    if environment.os.lower() != "linux":
        yield f"{at}.os = {environment.os!r}: sandboxes run Linux"
    if environment.gpus:
        yield f"{at}.gpus = {environment.gpus}: sandboxes have no GPU"
    if environment.tpu is not None:
        yield f"{at}.tpu: sandboxes have no TPU"
    for server in environment.mcp_servers:
        if server.transport != "stdio":
            yield (
                f"{at}.mcp_servers.{server.name}.transport = {server.transport!r}: a sandbox has"
                " no servers beside it; those of transport 'stdio' run in it"
            )


def _megabytes(size: object) -> object:
    found = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
    return size if found is None else int(float(found[1]) * _MB[found[2].upper()])
