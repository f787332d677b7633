"""All options of a service, each said once: cyclopts derives flags, help, environment variables and
the configuration file from these classes.

An attribute's docstring is its help. Methods take secrets and make random names; `compose` calls
each once.
"""

import re
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, ValidationError
from pydantic.dataclasses import dataclass

from prorl_service.agents.dialogue.user import KEY_VARIABLE as USER_KEY_VARIABLE
from prorl_service.errors import ProRLError, problems_of
from prorl_service.front.discovery import Announcement, announcement
from prorl_service.inference.pool import PoolConfig
from prorl_service.net.chat_model import ChatModelConfig
from prorl_service.net.credentials import state_directory, take_key, take_token, tokens_file
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.rewards.judge.judge import KEY_VARIABLE, JudgeConfig
from prorl_service.rollouts.journal.tables import Retention
from prorl_service.sandbox import SandboxKind
from prorl_service.sandbox.egress.addresses import read_range
from prorl_service.sandbox.egress.policy import WEB_PORTS, Rules
from prorl_service.schemas import API_KIND, BackendSpec
from prorl_service.shelf.policy import ShelfOptions
from prorl_service.tokens import message_tokens
from prorl_service.tools.nemo_gym.servers import NemoGymServers
from prorl_service.tools.openenv.servers import OpenEnvServers
from prorl_service.tools.spec import McpSpec, NemoGymSpec, OpenEnvSpec, is_base_url
from prorl_service.utils.runs import new_run

TRACES_PATH = "/v1/traces"
RUN_NAME = r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,59}"


def panel(title: str) -> Parameter:
    """Shows options without a prefix, under `title` in the help."""
    return Parameter(name="*", group=title)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    backend: tuple[str, ...] = ()
    """URL of an inference engine, which joins as soon as it answers, or 'openai:MODEL@URL' for a
    model behind an API, with '/v1', to evaluate and to make data. Repeatable. Trainers bring their
    own."""
    backend_key_file: Path | None = None
    """File with the key of these engines (default: PRORL_BACKEND_KEY, if set)."""
    tokenizer: str | None = None
    """Directory or hub name of the tokenizer (default: the engine's model; bytes for a model behind
    an API)."""

    def specs(self) -> tuple[BackendSpec, ...]:
        """Returns the engines. Always takes the key out of the environment. Raises `ProRLError`."""
        key = take_key("PRORL_BACKEND_KEY", self.backend_key_file, "the engines' key")
        try:
            return tuple(self._spec(backend, key) for backend in self.backend)
        except ValidationError as error:
            raise ProRLError(f"--backend: {problems_of(error)}") from None

    def _spec(self, backend: str, key: str | None) -> BackendSpec:
        """Raises `ValidationError`."""
        if not backend.startswith(f"{API_KIND}:"):
            return BackendSpec(url=backend, tokenizer=self.tokenizer, api_key=key)
        model, _, url = backend.removeprefix(f"{API_KIND}:").rpartition("@")
        tokenizer = self.tokenizer and message_tokens.PREFIX + self.tokenizer
        return BackendSpec(
            kind=API_KIND, model=model, url=url.rstrip("/"), tokenizer=tokenizer, api_key=key
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    run: str | None = None
    """Name of the training run (default: a new one at each start)."""
    journal: str | None = None
    """SQLite journal of accepted groups and their results; a restart resumes from it (default:
    ~/.local/state/prorl/RUN.sqlite). 'none' keeps it in memory."""
    resume: bool = False
    """Continue the run that the journal holds. An empty journal begins a new one."""
    abandon_agent: tuple[str, ...] = ()
    """Agent whose unfinished rollouts may fail if this service lacks what they need; otherwise it
    does not start. Repeatable."""
    retention: Annotated[Retention, Parameter(name="*")] = Retention()
    shelf: Annotated[ShelfOptions, Parameter(name="*")] = ShelfOptions()
    max_unfinished: PositiveInt = 50_000
    """Most rollouts accepted and not ended; more are refused until some end."""
    max_unfinished_per_client: PositiveInt | None = None
    """Most of them of one client, a named token or a training (default: no such limit)."""

    def named(self) -> tuple[str | None, Path | None]:
        """Returns the run, if it has a name, and the journal's file, if it has one. Raises
        `ProRLError`."""
        if self.run is not None and not re.fullmatch(RUN_NAME, self.run):
            raise ProRLError(
                f"--run {self.run}: a run's name is letters, digits, '.', '_' and '-', at most 60",
                hint="it names a file",
            )
        if self.journal == "none":
            return self.run, None
        if self.journal is not None:
            file = Path(self.journal)
            if not file.parent.is_dir():
                hint = "make it, or correct the name"
                raise ProRLError(f"--journal {file}: no directory {file.parent}", hint=hint)
            return self.run, file
        if self.run is None and self.resume:
            raise ProRLError("--resume needs a run", hint="add `--run NAME` or `--journal FILE`")
        run = self.run or new_run()
        return run, state_directory() / f"{run}.sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port to listen on; 0: any free one."""
    token_file: Path | None = None
    """File with the bearer token that clients must send (default: PRORL_TOKEN, if set, or the token
    of your services on this machine, which the first one makes and `prorl token` prints)."""
    tokens_file: Path | None = None
    """File of named tokens, which `prorl token add` writes (default: that of your services on this
    machine)."""
    no_token: bool = False
    """Require no token; anybody on this machine may run tasks."""
    allow_host: tuple[str, ...] = ()
    """Additional host name by which browsers may call the service without a token. Repeatable."""
    max_body_mb: PositiveInt = 64
    """Largest request body in MiB, except for streamed weights."""
    max_connections: Annotated[int, Field(ge=16)] = 4096
    """Most open connections; more are refused. Each call that waits for a rollout holds one."""
    drain_s: NonNegativeFloat = 10.0
    """Grace period for running rollouts on shutdown, in seconds."""
    announce: Path | None = None
    """File NAME.json with the service's address, for fronts; present while it takes rollouts."""
    announce_host: str | None = None
    """Hostname to announce (default: --host, or this machine's name)."""

    def token(self) -> str | None:
        """Returns the token, taken out of the environment; None if it is off. Raises
        `ProRLError`."""
        return take_token(self.token_file, self.host, is_off=self.no_token)

    def named_tokens(self) -> Path | None:
        """Returns the file of named tokens; None for a user without a home."""
        return self.tokens_file or tokens_file()

    def announcement(self) -> Announcement | None:
        """Raises `ProRLError` for a path that cannot be written or would not be found."""
        return announcement(self.announce, self.announce_host, self.host)

    def shared(self) -> Path | None:
        """Returns the directory in which services hand rollouts over; None if this one is not
        announced."""
        return None if self.announce is None else self.announce.parent / "handover"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    sandbox: SandboxKind = "auto"
    """Kind of sandbox: 'auto' is apptainer, or else podman or docker, for tasks with an image and
    bubblewrap for others; 'process' isolates nothing and is for tests."""
    default_image: str | None = None
    """Image of tasks that name none; needs a kind with images."""
    image_cache: Path | None = None
    """Directory of the image cache, which nodes may share (default: images in $PRORL_CACHE)."""
    image_budget_gb: NonNegativeFloat | None = None
    """Maximum size of finished images in the cache, in GB (default: no limit)."""
    image_base: Annotated[tuple[str, ...], Parameter(metavar="IMAGE=REFERENCE")] = ()
    """Replacement for an image that tasks name or Dockerfiles begin with, such as
    'debian:bookworm-slim=local:deb'. Repeatable."""
    no_image_build_network: bool = False
    """Give commands of Dockerfiles no network; they have the host's otherwise."""
    task_network: bool = False
    """Give sandboxes the network that their task asks for, by a proxy; they have none otherwise."""
    task_network_deny: Annotated[tuple[str, ...], Parameter(metavar="RANGE")] = ()
    """Addresses that no task reaches, whatever it names, such as 192.0.2.0/24. Repeatable."""
    task_network_port: Annotated[tuple[PositiveInt, ...], Parameter(metavar="PORT")] = ()
    """Port that tasks may reach in addition to 80 and 443. Repeatable."""
    warm_sandboxes: NonNegativeInt = 8
    """Sandboxes started ahead of their rollouts; 0: none."""

    def network(self) -> Rules | None:
        """Returns the rules for tasks with a network; None if there are none. Raises
        `ProRLError`."""
        try:
            denied = tuple(map(read_range, self.task_network_deny))
        except ValueError as error:
            raise ProRLError(f"--task-network-deny: {error}") from None
        return Rules(denied, WEB_PORTS.union(self.task_network_port)) if self.task_network else None


@dataclass(frozen=True, slots=True, kw_only=True)
class McpOptions:
    mcp: Annotated[tuple[str, ...], Parameter(metavar="NAME=URL|COMMAND")] = ()
    """MCP server whose tools tasks may choose; it must answer at startup. Repeatable.
    PRORL_MCP_KEY_NAME holds the bearer token for a URL."""
    mcp_tools: Annotated[tuple[str, ...], Parameter(metavar="NAME=TOOL,TOOL")] = ()
    """Tools of that server to offer (default: all). Repeatable."""

    def specs(self) -> tuple[McpSpec, ...]:
        """Returns the servers. Takes their keys out of the environment. Raises `ProRLError`."""
        return McpSpec.take_with_tools(self.mcp, self.mcp_tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class NemoGymOptions:
    nemo_gym: Annotated[tuple[str, ...], Parameter(metavar="NAME=URL")] = ()
    """Resources server of NeMo Gym whose tasks may be run. Repeatable. PRORL_NEMO_GYM_KEY_NAME
    holds the bearer token for it."""

    def servers(self) -> NemoGymServers:
        """Returns the servers. Takes their keys out of the environment. Raises `ProRLError`."""
        return NemoGymServers(NemoGymSpec.take(self.nemo_gym))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnvOptions:
    openenv: Annotated[tuple[str, ...], Parameter(metavar="NAME=URL")] = ()
    """OpenEnv server whose environments tasks may use; it must answer at startup. Repeatable.
    PRORL_OPENENV_KEY_NAME holds its bearer token."""
    openenv_wait_s: NonNegativeFloat = 600.0
    """Most seconds that a rollout waits for an OpenEnv server that is full or away."""

    def servers(self) -> OpenEnvServers:
        """Returns the servers. Takes their keys out of the environment. Raises `ProRLError`."""
        return OpenEnvServers(OpenEnvSpec.take(self.openenv), wait_s=self.openenv_wait_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOptions:
    judge_url: str | None = None
    """OpenAI-compatible endpoint, with '/v1', of a judge of answers."""
    judge_model: tuple[str, ...] = ()
    """Name of the judge's model there. Repeatable: several judges must agree on short answers, and
    their scores by a rubric are averaged."""
    judge_key_file: Path | None = None
    """File with the judge's key (default: PRORL_JUDGE_KEY, if set)."""
    judge_cache: Path | None = None
    """SQLite file that keeps the judge's verdicts (default: in memory)."""
    judge_max_calls: PositiveInt = 16
    """Most calls in flight at the judge; more wait."""
    judge_budget: PositiveInt | None = None
    """Most calls of the judge in all; what needs another then fails (default: no limit)."""

    def config(self) -> JudgeConfig | None:
        """Returns the judge, if there is one. Always takes its key out of the environment. Raises
        `ProRLError`."""
        key = take_key(KEY_VARIABLE, self.judge_key_file, "the judge's key")
        if self.judge_url is not None:
            return JudgeConfig(
                self.judge_url,
                self.judge_model,
                key,
                self.judge_cache,
                self.judge_max_calls,
                self.judge_budget,
            )
        if self.judge_model or self.judge_key_file or self.judge_cache:
            raise ProRLError("a judge needs a URL: --judge-url http://host:port/v1")
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserOptions:
    user_url: str | None = None
    """OpenAI-compatible endpoint, with '/v1', of a model that plays users in dialogues."""
    user_model: str = ""
    """Name of that model there."""
    user_key_file: Path | None = None
    """File with its key (default: PRORL_USER_KEY, if set)."""
    user_max_calls: PositiveInt = 16
    """Most calls in flight at it; more wait."""

    def config(self) -> ChatModelConfig | None:
        """Returns the user's model, if there is one. Always takes its key out of the environment.
        Raises `ProRLError`."""
        key = take_key(USER_KEY_VARIABLE, self.user_key_file, "the simulated user's key")
        if self.user_url is not None:
            return ChatModelConfig(
                "user", self.user_url, [self.user_model], key, self.user_max_calls
            )
        if self.user_model or self.user_key_file:
            raise ProRLError("a simulated user needs a URL: --user-url http://host:port/v1")
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    otel_endpoint: str | None = None
    """URL of an OpenTelemetry collector, which is sent a trace of each ended rollout by OTLP over
    HTTP; '/v1/traces' is added. Its key is in OTEL_EXPORTER_OTLP_HEADERS."""
    otel_sample: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of groups that are traced, siblings together."""
    otel_content: bool = False
    """Export messages, tool calls and their results, too."""

    def url(self) -> str | None:
        """URL of the collector's route for traces. Raises `ProRLError`."""
        if self.otel_endpoint is None:
            if self.otel_content or self.otel_sample != 1:
                raise ProRLError("traces need a collector: --otel-endpoint http://host:4318")
            return None
        if not is_base_url(self.otel_endpoint):
            raise ProRLError(
                "--otel-endpoint: it is no URL of a collector; write it as http://HOST:PORT",
                hint="keys go into OTEL_EXPORTER_OTLP_HEADERS, as 'name=value'",
            )
        return self.otel_endpoint.rstrip("/").removesuffix(TRACES_PATH) + TRACES_PATH


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """A service that does the rollouts itself."""

    agent: tuple[str, ...] = ()
    """Import path 'module:Class' of an agent of your own. Repeatable."""
    preset: tuple[Path, ...] = ()
    """TOML file of a harness of your own, which tasks name as the file. Repeatable."""
    engines: Annotated[EngineOptions, panel("Engines")] = EngineOptions()
    pool: Annotated[PoolConfig, panel("Engines")] = PoolConfig()
    run: Annotated[RunOptions, panel("Run and journal")] = RunOptions()
    pipeline: Annotated[PipelineConfig, panel("Stages")] = PipelineConfig()
    sandboxes: Annotated[SandboxOptions, panel("Sandboxes")] = SandboxOptions()
    mcp: Annotated[McpOptions, panel("Tools and judge")] = McpOptions()
    nemo_gym: Annotated[NemoGymOptions, panel("Tools and judge")] = NemoGymOptions()
    openenv: Annotated[OpenEnvOptions, panel("Tools and judge")] = OpenEnvOptions()
    judge: Annotated[JudgeOptions, panel("Tools and judge")] = JudgeOptions()
    user: Annotated[UserOptions, panel("Tools and judge")] = UserOptions()
    traces: Annotated[TraceOptions, panel("Traces")] = TraceOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontSettings:
    """A front that has other services do the rollouts."""

    services: Path
    """Directory in which the services announce themselves."""
    wait_for: NonNegativeInt = 1
    """Number of services that must answer before the front starts."""
    wait_s: NonNegativeFloat = 600.0
    """Seconds to wait for those services."""
    agent: tuple[str, ...] = ()
    """Import path 'module:Class' of an agent that the services offer. Repeatable."""
    preset: tuple[Path, ...] = ()
    """TOML file of a harness that the services offer. Repeatable."""
    engines: Annotated[EngineOptions, panel("Engines")] = EngineOptions()
    run: Annotated[RunOptions, panel("Run and journal")] = RunOptions()
    traces: Annotated[TraceOptions, panel("Traces")] = TraceOptions()
