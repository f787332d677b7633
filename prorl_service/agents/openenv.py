"""The agent that acts in an environment of an OpenEnv server: its steps are the model's tool calls.

The server's environment gives observations, rewards and the end; this module only adds rewards up.
A rollout has a session of its own, from its reset in INIT to the end of RUN. A server that is away
fails the rollout, and is never scored.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.agents.loop import run_turns
from prorl_service.agents.services import Requirements
from prorl_service.errors import TaskError, ToolServerError
from prorl_service.schemas import FinishReason, Message, Stage, Task
from prorl_service.schemas.numbers import is_score
from prorl_service.tools.base import Toolset, function_schema
from prorl_service.tools.openenv.episode import Episode, Mode, prompt_of
from prorl_service.tools.openenv.servers import Wanted

RESET_SHARE = 0.9
"""Share of INIT's budget for a reset, so that the server is blamed for one that hangs."""
MAX_COMPONENTS = 16
"""Most steps whose rewards are components of the verdict."""
MAX_REPORTED = 5000
"""Most steps whose rewards are in the report."""


class OpenEnvData(BaseModel):
    """`task.data` of this agent."""

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


class OpenEnvAgent(AgentHandler):
    name: ClassVar[str] = "openenv"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset()
    data_model: ClassVar[type[BaseModel] | None] = OpenEnvData

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.data = OpenEnvData.model_validate(task.data)
        self._wanted = Wanted(self.data.server, self.data.mode)
        self.uses = Requirements(openenv=self._wanted)
        self._episode: Episode | None = None

    def prompt(self) -> Prompt:
        """Returns the task's messages. The first observation is known only after the reset, which
        adds it to the last of them."""
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        server = rollout.services.openenv[self.data.server]
        session, first = await rollout.attempt.resources.enter_async_context(
            server.session(
                {"episode_id": rollout.rollout_id, **self.data.reset},
                clock=rollout.attempt.clock,
                timeout_s=RESET_SHARE * rollout.limits.init_timeout_s,
            )
        )
        if first.done:
            raise TaskError("the episode is over after its reset", hint="see data.reset")
        self._episode = Episode(session, rollout.turns)
        tools = [function_schema(tool) for tool in rollout.services.tools(self.uses)]
        rollout.begin(Prompt(_with_text(self.task.messages, prompt_of(first)), tools))
        if len(rollout.prompt_ids) >= rollout.attempt.max_model_len:
            raise TaskError(
                f"the prompt has {len(rollout.prompt_ids)} tokens with the first observation,"
                " which leaves no room to sample",
                hint="shorten the task's messages, or serve a model with a longer context",
            )

    async def run(self, rollout: RolloutContext) -> FinishReason:
        assert self._episode is not None
        tools = rollout.services.openenv.tools(self._wanted, self._episode)
        toolset = Toolset(tools, None, timeout_s=rollout.limits.tool_timeout_s)
        return await run_turns(rollout, toolset)

    async def eval(self, rollout: RolloutContext) -> Verdict:
        """Raises `ToolServerError` if the environment raised errors and never took a step: that
        says nothing of the policy."""
        episode = self._episode
        assert episode is not None
        if episode.raised and not episode.rewards:
            raise ToolServerError(
                f"the environment raised an error at every step: {episode.problem}",
                hint="see the server's log",
            )
        given = [reward for reward in episode.rewards if reward is not None] or [0.0]
        is_sum = self.data.reward == "sum"
        return Verdict(
            sum(given) if is_sum else given[-1],
            _components(episode),
            self._report(episode),
            episode.turn_rewards if is_sum else {},
        )

    def _report(self, episode: Episode) -> dict[str, JsonValue]:
        rewards: list[JsonValue] = [
            reward if reward is None or math.isfinite(reward) else str(reward)
            for reward in episode.rewards[:MAX_REPORTED]
        ]
        return {"server": self.data.server, "rewards": rewards, "steps": len(episode.rewards)}


def _components(episode: Episode) -> dict[str, float]:
    steps = {
        f"step_{number}": reward
        for number, reward in enumerate(episode.rewards[:MAX_COMPONENTS], 1)
        if is_score(reward)
    }
    return {
        "done": float(episode.done),
        "steps": float(len(episode.rewards)),
        "invalid_actions": float(episode.refused),
        "raised_errors": float(episode.raised),
        **steps,
    }


def _with_text(messages: Sequence[Message], text: str) -> list[Message]:
    """Adds text to the last message if it is the user's, else as a message of the user."""
    if not text:
        return list(messages)
    *earlier, last = messages
    if last.role != "user":
        return [*messages, Message(role="user", content=text)]
    return [*earlier, last.model_copy(update={"content": f"{last.content}\n\n{text}"})]
