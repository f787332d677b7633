"""`play`: one rollout of an agent with scripted replies, for its author's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prorl_service.agents.base import AgentHandler
from prorl_service.agents.registry import AgentRegistry
from prorl_service.sandbox import SandboxKind
from prorl_service.sandbox.base import SandboxProvider
from prorl_service.schemas import (
    FinishReason,
    Group,
    Limits,
    Message,
    Rollout,
    Sampling,
    Task,
    Turn,
)
from prorl_service.testing.replies import Reply

if TYPE_CHECKING:
    from prorl_service.server.settings import ServiceSettings


@dataclass(frozen=True, slots=True)
class Played:
    """An ended rollout, with what tests check."""

    rollout: Rollout
    prompts: list[str]
    """Prompts of the model calls, as the model's text."""
    prompt_ids: list[list[int]]
    """Prompts of the model calls, as the engine got them."""
    unused_replies: int
    """Number of scripted replies that the agent did not use."""

    @property
    def reward(self) -> float:
        """The reward. Raises `AssertionError`, with the rollout's error, if it has none."""
        if self.rollout.reward is None:
            raise AssertionError(self._failure())
        return self.rollout.reward

    @property
    def finish_reason(self) -> FinishReason | None:
        """Reason why RUN ended; None if there was no turn."""
        trajectory = self.rollout.trajectory
        return None if trajectory is None else trajectory.finish_reason

    @property
    def turns(self) -> list[Turn]:
        trajectory = self.rollout.trajectory
        return [] if trajectory is None else trajectory.turns

    @property
    def outputs(self) -> list[str]:
        """Outputs of all tool calls, in order."""
        return [record.output for turn in self.turns for record in turn.tool_calls]

    def _failure(self) -> str:
        error = self.rollout.error
        if error is None:
            return f"the rollout is {self.rollout.state.value}"
        stage = f" in {error.stage.value.upper()}" if error.stage else ""
        return f"the rollout failed{stage}, blame {error.blame.value}: {error.message}"


async def play(
    agent: type[AgentHandler],
    task: Task | Mapping[str, Any],
    replies: Sequence[Reply | Mapping[str, Any]],
    *,
    sandboxes: SandboxKind | SandboxProvider | None = None,
    sampling: Sampling | None = None,
    limits: Limits | None = None,
    tokenizer: str | Path | None = None,
    settings: ServiceSettings | None = None,
) -> Played:
    """Plays one rollout of `agent`, whose model gives `replies`.

    Everything but the model is real: stages with their budgets, sandboxes, tools, scoring. In a
    `task` given as a mapping, `task_id` and `agent` may be left out. A reply may be what a data
    set's `solution` has, such as `{"tool_calls": [...]}`. `sandboxes` is a kind, such as
    'process', which isolates nothing, or a provider, such as `FakeSandboxes`; None picks the
    strongest kind that works here, if the agent opens any. `tokenizer` is a model's directory or
    hub name, for its chat template and tool call format; without one, tokens are bytes and the
    format is Qwen3's. `settings` hold MCP servers and a judge.

    An agent that fails makes a failed rollout. Raises `InvalidRequest` for a task that the agent
    refuses, pydantic's `ValidationError` for an invalid task or reply, and `SandboxError` if no
    kind of sandbox works.
    """
    # Imported here, so that users of the fakes alone do not import the service.
    from prorl_service.server.settings import ServiceSettings
    from prorl_service.testing.scripted_engine import scripted_engine
    from prorl_service.testing.trial import rollouts, trial_service

    registry = AgentRegistry()
    registry.add(agent, agent.__qualname__)
    if not isinstance(task, Task):
        task = Task.model_validate({"task_id": "played", "agent": agent.name, **task})
    group = Group(
        group_id="played",
        task=task.model_copy(update={"agent": agent.name}),
        sampling=sampling or Sampling(),
        limits=limits or Limits(),
    )
    settings = settings or ServiceSettings()
    if sandboxes is None:
        # An agent without sandboxes needs no trial of kinds, which may not even be installed.
        sandboxes = settings.sandboxes.sandbox if agent.sandbox_stages else "process"
    provider = None if isinstance(sandboxes, str) else sandboxes
    options = replace(settings.sandboxes, warm_sandboxes=0)
    if isinstance(sandboxes, str):
        options = replace(options, sandbox=sandboxes)
    settings = replace(settings, sandboxes=options)
    reply_format = settings.pool.reply_format
    script = [Message.written(dict(one)) if isinstance(one, Mapping) else one for one in replies]
    async with (
        scripted_engine([script], tokenizer=tokenizer, reply_format=reply_format) as engine,
        trial_service(registry, [engine.spec], settings, provider=provider) as service,
    ):
        await service.submit([group])
        [rollout] = [one async for one in rollouts(service, group)]
    prompt_ids = engine.prompts[rollout.rollout_id]
    prompts = [engine.chat.decode(ids) for ids in prompt_ids]
    return Played(rollout, prompts, prompt_ids, engine.unused_replies(rollout.rollout_id))
