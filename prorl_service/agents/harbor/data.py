"""`task.data` of the agent `harbor`: one task directory, without its files.

Field names are ours; the words are those of Harbor's `task.toml`, schema 1.4. Directories are named
by the digests of their archives, as `sandbox.archives` keeps them.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from prorl_service.sandbox.archives import REFERENCE
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.egress.policy import HostEntry
from prorl_service.tools.registry import ToolNames

Archive = Annotated[str, Field(pattern=REFERENCE)]
Environment = dict[str, str]
User = Annotated[str, Field(min_length=1)]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Healthcheck(_Data):
    """A command that must exit with 0 before work begins."""

    command: str
    interval_s: float = Field(5, gt=0)
    timeout_s: float = Field(30, gt=0)
    start_period_s: float = Field(0, ge=0, description="Seconds in which failures do not count.")
    start_interval_s: float = Field(5, gt=0)
    retries: int = Field(3, ge=1)


class Network(_Data):
    """What a sandbox may reach, if the operator allows it: `prorl serve --task-network`."""

    mode: Literal["none", "allowlist", "public"] = "none"
    hosts: list[HostEntry] = Field(
        [], description="Host names, `*.` for subdomains, addresses, ranges."
    )


class McpServer(_Data):
    """A command that speaks MCP on its standard input and output."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]+$")
    command: list[str] = Field(min_length=1)


class Place(_Data):
    """A sandbox for the agent, or for a verifier."""

    image: str | None = Field(None, description="Its image (default: the task's).")
    cpus: float | None = Field(None, gt=0)
    memory_mb: int | None = Field(None, gt=0)
    storage_mb: int | None = Field(None, gt=0)
    environment: Environment = {}
    workdir: str | None = Field(None, description="Directory of commands (default: the image's).")
    healthcheck: Healthcheck | None = None
    network: Network = Network()

    def limits(self) -> SandboxLimits:
        standard = SandboxLimits(memory_mb=4096, disk_mb=4096, output_bytes=32 * 1024)
        return SandboxLimits(
            memory_mb=self.memory_mb or standard.memory_mb,
            cpus=self.cpus or standard.cpus,
            disk_mb=self.storage_mb or standard.disk_mb,
            processes=1024,
            output_bytes=standard.output_bytes,
        )


class Collect(_Data):
    """A command that runs after the agent, while what it started still runs."""

    command: str
    timeout_s: float = Field(60, gt=0)


class Artifact(_Data):
    """A file or directory that a verifier with a sandbox of its own gets."""

    source: str = Field(description="Path; relative to the working directory.")
    exclude: list[str] = Field([], description="Patterns of paths in a directory to leave out.")


class Verifier(_Data):
    tests: list[Archive] = Field([], description="Archives that are unpacked at /tests, in order.")
    timeout_s: float = Field(600, gt=0, description="Seconds; then the reward is 0.")
    environment: Environment = {}
    user: User | None = None
    place: Place | None = Field(
        None, description="A sandbox of its own, which gets the artifacts only; None: the agent's."
    )
    network: Network = Network()
    collect: list[Collect] = []
    reward_if_absent: float | None = Field(
        None, description="Reward where the verifier gives none and its exit code is not 0."
    )


class Step(_Data):
    """One instruction, and the verdict on what the agent did. Most tasks have one."""

    name: str = ""
    instruction: str = Field("", description="Instruction; of the first step: the task's messages.")
    timeout_s: float | None = Field(None, gt=0, description="Seconds of work (default: RUN's).")
    user: User | None = Field(None, description="The agent's user (default: the image's).")
    files: Archive | None = Field(None, description="Files for the working directory.")
    has_setup: bool = Field(
        False, description="Whether setup.sh of the files runs before the agent."
    )
    healthcheck: Healthcheck | None = None
    min_reward: dict[str, float] = Field({}, description="Rewards below these end the task.")
    artifacts: list[Artifact] = []
    verifier: Verifier


class HarborData(_Data):
    place: Place = Place()
    tools: ToolNames = ["bash", "str_replace_editor", "submit"]
    mcp: list[McpServer] = Field([], description="Servers of tools, run in the sandbox.")
    steps: list[Step] = Field(min_length=1)
    reward: Literal["mean", "final"] = Field("mean", description="Reward of several steps.")
    reward_key: str = Field("reward", description="Key that is the reward, of several.")
    guard: bool = Field(
        True, description="Restore only work for a verifier that shares the agent's files."
    )
    work: list[str] = Field(
        [],
        description="Files and directories that are work, beyond the working directory and the"
        " artifacts; `prorl harbor check` finds them.",
    )
    protected: list[str] = Field(
        [], description="Files and directories that are no work, wherever they are."
    )
    allow: list[str] = Field([], description="Patterns of paths that are restored nevertheless.")
    isolated: bool = Field(
        True,
        description="Whether the verifier's Python leaves out the current directory and the user's"
        " site, and takes modules of the image first; otherwise the directory is searched last.",
    )
    skills: str | None = Field(None, description="Directory of skills in the image, for the agent.")
    about: dict[str, JsonValue] = Field({}, description="The task's own [metadata], for people.")

    @model_validator(mode="after")
    def _has_instructions(self) -> Self:
        if any(not step.instruction for step in self.steps[1:]):
            raise ValueError("each step after the first needs an instruction")
        if len({step.user for step in self.steps}) > 1:
            raise ValueError("all steps are of one sandbox, hence of one user")
        return self
