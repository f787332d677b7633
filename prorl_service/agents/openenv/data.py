"""`task.data` of the agent `openenv`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from prorl_service.tools.openenv.episode import Mode


class OpenEnvData(BaseModel):
    model_config = ConfigDict(extra="forbid")

    server: str = Field(description="Name of a server: `prorl serve --openenv NAME=URL`.")
    reset: dict[str, JsonValue] = Field(
        {},
        description="Arguments of the environment's reset, such as `seed`, or `split` and `index`.",
    )
    mode: Mode | None = Field(
        None,
        description="Tools of the model: `step`, whose arguments are an action, or those that the "
        "server lists (`mcp`); default: `mcp` where its steps are calls of tools.",
    )
    reward: Literal["sum", "last"] = Field(
        "sum", description="Reward of a rollout: the sum of its steps' rewards, or the last one."
    )
