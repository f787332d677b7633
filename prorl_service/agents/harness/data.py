"""`task.data` of the agent `harness`."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from prorl_service.gateway.harnesses import preset
from prorl_service.gateway.harnesses.preset import Preset
from prorl_service.schemas import SegmentKind


class HarnessData(BaseModel):
    model_config = ConfigDict(extra="forbid")

    harness: str | None = Field(
        None,
        description="Name of a preset, as `prorl harnesses list` shows it, or NAME@VERSION; None: "
        "`command`.",
    )
    version: str | None = Field(None, description="Its version (default: the preset's).")
    command: list[str] = Field(
        [], description="Command line; the preset's, if there is one, by default."
    )
    environment: dict[str, str] = Field({}, description="Further variables by name.")
    files: dict[str, str] = Field(
        {}, description="Further files: text by path; ${home} is the program's HOME."
    )
    where: Literal["sandbox", "outside"] = Field(
        "sandbox",
        description="Where the program runs. `outside`: you start it, as soon as the rollout's "
        "`GET /v1/rollouts/ID/gateway` answers, and say when it has ended.",
    )
    agent: str = Field(description="Name of the agent that prepares the sandbox and grades.")
    data: dict[str, JsonValue] = Field({}, description="`task.data` of that agent.")
    history: Literal["own", "harness"] = Field(
        "own",
        description="What the policy sees of its earlier replies: what it sampled, or what the "
        "harness tells of them, which opens a segment wherever that differs.",
    )
    train: list[SegmentKind] = Field(
        ["main", "compaction", "subagent"], description="Kinds of segments that are learnt from."
    )

    @model_validator(mode="before")
    @classmethod
    def _version_in_name(cls, data: Any) -> Any:
        match data:
            case Mapping() if "@" in str(data.get("harness")):
                name, _, version = str(data["harness"]).partition("@")
                if data.get("version") not in (None, version):
                    raise ValueError("`harness` names another version than `version`")
                return {**data, "harness": name, "version": version}
        return data

    @model_validator(mode="after")
    def _starts_something(self) -> Self:
        starts = self.harness is not None or bool(self.command)
        if self.where == "outside":
            if starts or self.environment or self.files:
                raise ValueError("what runs outside is started by you: leave out what starts it")
            return self
        if not starts:
            raise ValueError("give `harness`, the name of a preset, or a `command`")
        if self.version is not None and self.harness is None:
            raise ValueError("`version` is that of a preset: give `harness`")
        self.preset()  # raises for an unknown one, and for unknown ${names}
        return self

    def preset(self) -> Preset:
        """Returns the preset with what the task adds. Raises `InvalidRequest`."""
        found = (
            Preset(about="") if self.harness is None else preset.load(self.harness, self.version)
        )
        return Preset.model_validate(
            found.model_dump()
            | {
                "command": self.command or found.command,
                "environment": {**found.environment, **self.environment},
                "files": {**found.files, **self.files},
            }
        )
