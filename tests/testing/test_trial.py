"""A service in this process, and what an observer sees of its rollouts as they happen."""

from collections.abc import Mapping
from typing import Any

import pytest

from prorl_service.agents.registry import AgentRegistry
from prorl_service.attempt import Attempt
from prorl_service.rollouts.observers import Observer
from prorl_service.sandbox.base import ToolResult
from prorl_service.schemas import Group, Task
from prorl_service.server.settings import SandboxOptions, ServiceSettings
from prorl_service.testing import FakeSandboxes, Reply, call
from prorl_service.testing.scripted_engine import scripted_engine
from prorl_service.testing.trial import rollouts, trial_service

QUESTION = {"messages": [{"role": "user", "content": "What is 17 * 3?"}], "data": {"answer": "51"}}
NO_SPARES = ServiceSettings(sandboxes=SandboxOptions(warm_sandboxes=0))


@pytest.mark.processes
async def test_an_observer_sees_each_step_when_it_happens() -> None:
    seen: list[tuple[str, bool, int, int]] = []

    def answer(name: str, arguments: Mapping[str, Any]) -> ToolResult:
        seen.append(("tool", False, 0, 0))
        return ToolResult(arguments["command"])

    class Watching(Observer):
        def changed(self, rollout: Attempt) -> None:
            outputs = sum(len(turn.tool_calls) for turn in rollout.turns)
            seen.append((rollout.stage.value, rollout.calls_model, len(rollout.turns), outputs))

    task = Task.model_validate({"task_id": "t", "agent": "math", **QUESTION})
    group = Group(group_id="g", task=task)
    replies: list[Reply] = [call("bash", command="echo 51"), r"\boxed{51}"]
    async with (
        scripted_engine([replies]) as engine,
        trial_service(
            AgentRegistry(), [engine.spec], NO_SPARES, provider=FakeSandboxes(answer)
        ) as service,
    ):
        service.executor.inflight.observers.add(Watching())
        await service.submit([group])
        [rollout] = [one async for one in rollouts(service, group)]
    assert rollout.reward == 1.0
    assert seen == [
        ("init", False, 0, 0),
        ("run", False, 0, 0),
        ("run", True, 0, 0),
        ("run", False, 1, 0),
        ("tool", False, 0, 0),
        ("run", False, 1, 1),
        ("run", True, 1, 1),
        ("run", False, 2, 1),
        ("eval", False, 2, 1),
    ]
