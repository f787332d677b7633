"""What VeRL, TRL and Tinker make of turn rewards, and of a policy behind an API."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from tempfile import TemporaryDirectory

from bench import frame
from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.agents.math import MathAgent
from prorl_service.agents.registry import AgentRegistry
from prorl_service.schemas import (
    BackendSpec,
    Group,
    Message,
    Rollout,
    Task,
)
from prorl_service.server.settings import ServiceSettings
from prorl_service.testing.replies import Reply, call
from prorl_service.testing.scripted_engine import scripted_engine
from prorl_service.testing.stubs import StubApi
from prorl_service.testing.trial import rollouts, trial_service

ANSWER = "\\boxed{42}"


TRAINERS = {"verl": "verl", "trl": "", "tinker": "tinker"}
"""Environments of trainers."""
CALLS_OF = (0, 1, 2, 4)
"""Numbers of commands of the rollouts of a group. Each costs a tenth of the reward."""


class Stepwise(MathAgent):
    """Rewards each command with -0.1, and the answer with 1."""

    name = "stepwise"

    async def eval(self, rollout: RolloutContext) -> Verdict:
        verdict = await super().eval(rollout)
        of_turns = {at: -0.1 for at, turn in enumerate(rollout.turns) if turn.tool_calls}
        return Verdict(verdict.reward + sum(of_turns.values()), turn_rewards=of_turns)


def measure_trainers(quick: bool) -> frame.Found | None:
    if not all(map(frame.environment, TRAINERS.values())):
        return None
    sampled, by_api = asyncio.run(_rewarded())
    rows = [
        {
            "trainer": name,
            "as_stated": _is_as_stated(name, sampled, _rows_of(name, sampled)),
            "api_rollouts": len(by_api),
        }
        for name in TRAINERS
    ]
    headline = {
        "turn_reward_trainers": sum(bool(row["as_stated"]) for row in rows),
        "api_rollouts_trained": sum(len(_rows_of(name, by_api)) for name in TRAINERS),
    }
    return frame.Found(rows, headline)


async def _rewarded() -> tuple[list[Rollout], list[Rollout]]:
    """Returns a group whose turns have rewards, and one of the same by a model behind an API."""
    scripts: list[list[Reply]] = [
        [*(call("bash", command="ls") for _ in range(n)), ANSWER] for n in CALLS_OF
    ]
    agents = AgentRegistry()
    agents.add(Stepwise, "bench")
    groups = []
    async with scripted_engine(scripts) as engine, StubApi(lambda _: ANSWER) as api:
        behind_api = BackendSpec(kind="openai", model="stub", url=f"{api.url}/v1")
        for spec in (engine.spec, behind_api):
            async with trial_service(agents, [spec], ServiceSettings()) as service:
                question = Message(role="user", content="What is 6 * 7?")
                task = Task(
                    task_id="t", agent="stepwise", messages=[question], data={"answer": "42"}
                )
                group = Group(group_id="g", task=task, n=len(scripts))
                await service.submit([group])
                groups.append([one async for one in rollouts(service, group)])
    return groups[0], groups[1]


def _rows_of(trainer: str, group: Sequence[Rollout]) -> list[list[float]]:
    """Returns what the trainer's plug-in makes of a group, in the trainer's environment."""
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        file = Path(name) / "group.json"
        file.write_text(f"[{','.join(one.model_dump_json() for one in group)}]")
        python = frame.environment(TRAINERS[trainer])
        assert python is not None
        module = "bench.richer.trainer_rows"
        printed = frame.in_environment(python, trainer, module, trainer, file)
    found: list[list[float]] = json.loads(printed)
    return found


def _is_as_stated(trainer: str, group: Sequence[Rollout], rows: list[list[float]]) -> bool:
    """Returns whether a trainer gets rewards of turns as docs/agents.md states."""
    totals = [one.reward or 0.0 for one in group]
    match trainer:
        case "verl":
            wanted = [_of_tokens(one) for one in group]
        case "trl":
            wanted = [[total] for total in totals]
        case _:
            wanted = [[(total - fmean(totals)) / pstdev(totals)] for total in totals]
    return len(rows) == len(wanted) and all(
        len(row) == len(some) and all(abs(a - b) < 1e-6 for a, b in zip(row, some, strict=True))
        for row, some in zip(rows, wanted, strict=True)
    )


def _of_tokens(rollout: Rollout) -> list[float]:
    trajectory, total = rollout.trajectory, rollout.reward
    assert trajectory is not None
    assert total is not None
    rewards = [0.0] * len(trajectory.segments[0].response_ids)
    for turn in trajectory.turns:
        rewards[turn.stop - 1] += turn.reward or 0.0
    rewards[trajectory.turns[-1].stop - 1] += total - sum(rewards)
    return rewards
