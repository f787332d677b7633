"""Rollouts that are carried over training phases, which do not count against their budget.

The service and the gateway are real; the trainer is reduced to closing its engines while it trains.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prorl_service import local
from prorl_service.client import AsyncRolloutClient
from prorl_service.client.engine_gateway import Gateway
from prorl_service.schemas import (
    FinishReason,
    Group,
    Limits,
    Rollout,
    RolloutState,
    Sampling,
)
from prorl_verl.engines import Engines
from tests import builders
from tests.verl.counting_server import client_of, counting
from tests.verl.turns_agent import TURNS

OPTIONS = ["--sandbox", "process", "--agent", "tests.verl.turns_agent:TurnsAgent"]
KEY = "key"
RUN_TIMEOUT_S = 15.0  # turns take two seconds, and far more on a busy machine
TURN_S = 0.5
PHASE_S = 3 * RUN_TIMEOUT_S
GROUPS, N = 4, 4


@pytest.fixture
def engines() -> Iterator[tuple[Any, Engines]]:
    with counting(1) as (server,):
        yield server, Engines(client_of(server), max_in_flight=8)


async def test_carried_rollouts_survive_training_phases_of_three_budgets(
    engines: tuple[Any, Engines], tiny_model: Path, tmp_path: Path
) -> None:
    server, own = engines
    await server.set.remote(pause_s=TURN_S)
    gateway = Gateway(own, model="m", root=str(tiny_model), max_model_len=256, api_key=KEY)
    port = await gateway.start("127.0.0.1", 0)
    with local.service([], log=tmp_path / "log", options=OPTIONS) as service:
        async with AsyncRolloutClient(service.url) as client:
            await client.add_backend(f"http://127.0.0.1:{port}", str(tiny_model), api_key=KEY)
            groups = [_group(number) for number in range(GROUPS)]
            await client.submit(groups)
            for _ in range(2):
                await _until_sampling(server)
                await own.close()
                await asyncio.sleep(PHASE_S)
                assert (await server.seen.remote())["running"] == 0
                own.open()
            ids = [one for group in groups for one in group.rollout_ids()]
            ended = await client.wait(ids, 120)
    await gateway.stop()
    assert {(one.state, one.attempt) for one in ended} == {(RolloutState.DONE, 1)}
    assert {_finish(one) for one in ended} == {FinishReason.FINISHED}
    assert max(one.timings.waited_s for one in ended) > PHASE_S


def _group(number: int) -> Group:
    return Group(
        group_id=f"g{number}",
        task=builders.task(agent="turns"),
        n=N,
        sampling=Sampling(max_tokens_per_turn=TURNS),
        limits=Limits(run_timeout_s=RUN_TIMEOUT_S),
    )


def _finish(rollout: Rollout) -> FinishReason:
    assert rollout.trajectory is not None
    return rollout.trajectory.finish_reason


async def _until_sampling(server: Any) -> None:
    async with asyncio.timeout(60):
        while not (await server.seen.remote())["running"]:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
        await asyncio.sleep(TURN_S / 2)
