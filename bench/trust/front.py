"""Costs of a front's restart and of a hung service: model calls, and seconds.

`python -m bench.trust.front` prints both. Four services of 16 slots each, 64 rollouts of one model
call, an engine that counts its calls.
"""

import asyncio
import json
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from prorl_service import local
from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.client import AsyncRolloutClient
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import FinishReason, Group, Message, Rollout, RolloutState, Stage, Task
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat

GROUPS, GROUP_SIZE = 8, 8
ROLLOUT_S = {"restart": 15.0, "hang": 3.0}
WAIT_S = 300.0
WIDE = ("--run-workers", "16", "--init-workers", "8", "--ready-rollouts", "8")


class Sleeper(AgentHandler):
    """Sleeps as long as its task says, then makes one call."""

    name: ClassVar[str] = "sleeper"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset()

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        return

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await asyncio.sleep(float(str(self.task.data["sleep_s"])))
        await rollout.sample(rollout.prompt_ids)
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(1.0)


AGENT = ("--agent", "bench.trust.front:Sleeper")


@dataclass(frozen=True, slots=True)
class Cluster:
    directory: Path
    engine: StubEngine
    services: Sequence[local.LocalProcess]

    @asynccontextmanager
    async def front(self, port: int | None = None) -> AsyncIterator[local.LocalProcess]:
        """Starts a front, in a thread: the engine, in this process, must answer meanwhile."""
        journal = ("--journal", str(self.directory / "front.sqlite"), "--resume")
        starting = local.front(
            self.directory / "services",
            [self.engine.url],
            log=self.directory / "front.log",
            port=port,
            options=[*AGENT, *journal, "--wait-for", str(len(self.services))],
        )
        running = await asyncio.to_thread(starting.__enter__)
        try:
            yield running
        finally:
            await asyncio.to_thread(starting.__exit__, None, None, None)

    async def running(self) -> list[int]:
        """Returns the number of running rollouts of each service."""
        return [(await _states(one)).get(RolloutState.RUNNING, 0) for one in self.services]


async def _states(service: local.LocalProcess) -> dict[RolloutState, int]:
    async with AsyncRolloutClient(service.url) as client:
        return (await client.status()).rollouts


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Cluster]:
    build_tiny_model(directory / "model")
    end = ChatFormat.load(directory / "model").end_of_turn_id
    with ExitStack() as stack:
        async with StubEngine(directory / "model", lambda _: [5, 6, end]) as engine:
            services = [
                stack.enter_context(
                    local.service(
                        [],
                        log=directory / f"{name}.log",
                        options=[
                            *(*AGENT, *WIDE, "--sandbox", "process", "--warm-sandboxes", "0"),
                            *("--announce", str(directory / "services" / f"{name}.json")),
                        ],
                    )
                )
                for name in "abcd"
            ]
            yield Cluster(directory, engine, services)


def groups(sleep_s: float) -> list[Group]:
    message = Message(role="user", content="Go on.")
    task = Task(task_id="t", agent="sleeper", messages=[message], data={"sleep_s": sleep_s})
    return [Group(group_id=f"g{i}", task=task, n=GROUP_SIZE) for i in range(GROUPS)]


def ids(of: Sequence[Group]) -> list[str]:
    return [one for group in of for one in group.rollout_ids()]


async def until_all_run(cluster: Cluster) -> None:
    while sum(await cluster.running()) < GROUPS * GROUP_SIZE:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def restart(cluster: Cluster) -> dict[str, float]:
    """Kills the front while all rollouts run, and starts it again."""
    submitted = groups(ROLLOUT_S["restart"])
    async with cluster.front() as front:
        async with AsyncRolloutClient(front.url) as client:
            await client.submit(submitted)
            await until_all_run(cluster)
        front.kill()
    port = int(front.url.rpartition(":")[2])
    async with cluster.front(port) as front, AsyncRolloutClient(front.url) as client:
        ended = await client.wait(ids(submitted), WAIT_S)
    _check(ended)
    return {"front_restart_calls_per_rollout": cluster.engine.calls / len(ended)}


async def hang(cluster: Cluster) -> dict[str, float]:
    """Stops a service (SIGSTOP) while it runs rollouts of three seconds."""
    submitted = groups(ROLLOUT_S["hang"])
    async with cluster.front() as front, AsyncRolloutClient(front.url) as client:
        await client.submit(submitted)
        while RolloutState.RUNNING not in await _states(cluster.services[0]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        hung = cluster.services[0].process
        hung.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        try:
            ended = await client.wait(ids(submitted), WAIT_S)
            took_s = time.monotonic() - stopped_at
        finally:
            hung.send_signal(signal.SIGCONT)
    _check(ended)
    moved = sum(one.attempt > 1 for one in ended)
    if not moved:
        raise RuntimeError("the service had ended its rollouts before it was stopped")
    return {"hang_recovery_s": round(took_s, 1), "hang_moved_rollouts": moved}


def _check(ended: Sequence[Rollout]) -> None:
    problems = [one.error for one in ended if one.state is not RolloutState.DONE]
    if problems or len(ended) != GROUPS * GROUP_SIZE:
        raise RuntimeError(f"{len(ended)} ended, with {problems}")


async def measure() -> dict[str, float]:
    figures: dict[str, float] = {}
    for scene in (restart, hang):
        with tempfile.TemporaryDirectory() as directory:
            async with cluster(Path(directory)) as made:
                figures |= await scene(made)
    return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure()), indent=2))
