"""Servers of NeMo Gym that are killed while rollouts are at work: no rollout is scored for that."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from prorl_service.agents.registry import AgentRegistry
from prorl_service.errors import InvalidRequest
from prorl_service.local import free_port
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.schemas import BackendSpec, Group, Limits, Message, Rollout, RolloutState
from prorl_service.server.compose import rollout_service
from prorl_service.server.service import Service
from prorl_service.server.settings import RunOptions, SandboxOptions, ServiceSettings
from prorl_service.testing import Reply, StubEngine, byte_model, call
from prorl_service.testing.replies import token_ids
from prorl_service.testing.trial import rollouts
from prorl_service.tokens.chat import ChatFormat
from tests.agents.nemo_gym import gym_servers
from tests.agents.nemo_gym.gym_servers import COUNTER

pytestmark = [pytest.mark.processes, gym_servers.NEEDED]

RIGHT: list[Reply] = [
    call("increment_counter", count=1),
    call("increment_counter", count=2),
    call("get_counter_value"),
    "It is 6.",
]
"""Replies by the number of tools' answers so far: a rollout that begins again
gets them from the first on."""


@asynccontextmanager
async def service(
    url: str, attempts: int, directory: Path
) -> AsyncIterator[tuple[Service, StubEngine]]:
    settings = ServiceSettings(
        run=RunOptions(journal="none"),
        pipeline=PipelineConfig(max_attempts=attempts),
        sandboxes=SandboxOptions(sandbox="process", warm_sandboxes=0),
        nemo_gym=gym_servers.options(**{COUNTER: url}),
    )
    byte_model.write(directory)
    chat = ChatFormat.load(directory)
    replies = [token_ids(reply, chat)[0] for reply in RIGHT]

    def answer(prompt: list[int]) -> list[int]:
        return replies[chat.decode(prompt).count("<tool_response>")]

    async with (
        StubEngine(directory, answer, max_model_len=2**16) as engine,
        rollout_service(settings, agents=AgentRegistry()) as service,
    ):
        await service.add_backend(BackendSpec(url=engine.url, tokenizer=str(directory)))
        yield service, engine


def group(n: int, **limits: float) -> Group:
    task = gym_servers.tasks_of(COUNTER)[0]
    return Group(group_id="g", task=task, n=n, limits=Limits.model_validate(limits))


async def until_calls(engine: StubEngine, count: int) -> None:
    while engine.calls < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def ended(service: Service, submitted: Group) -> list[Rollout]:
    return [one async for one in rollouts(service, submitted)]


async def test_a_server_killed_in_mid_rollout_fails_all_and_scores_none(tmp_path: Path) -> None:
    submitted = group(16, init_timeout_s=2)
    with gym_servers.starting(COUNTER, tmp_path) as server:
        await asyncio.to_thread(gym_servers.until_up, server)
        async with service(server.url, 1, tmp_path) as (at_work, engine):
            engine.latency_s = 1.0
            await at_work.submit([submitted])
            await until_calls(engine, 8)
            server.kill()
            ends = await ended(at_work, submitted)
    assert all(one.state is RolloutState.FAILED for one in ends)
    assert {one.reward for one in ends} == {None}
    errors = [one.error for one in ends if one.error is not None]
    assert len(errors) == 16
    assert all(error.retryable for error in errors), errors
    assert {error.kind for error in errors} <= {"ToolServerAway", "SessionLost"}
    assert any(one.trajectory is not None for one in ends)


async def test_rollouts_begin_again_after_a_restart_that_none_of_them_saw(tmp_path: Path) -> None:
    """All wait for the engine while their server is killed and started again."""
    port = free_port()
    submitted = group(4, init_timeout_s=300)
    async with (
        httpx.AsyncClient(trust_env=False) as http,
        service(f"http://127.0.0.1:{port}", 3, tmp_path) as (at_work, engine),
    ):
        with gym_servers.starting(COUNTER, tmp_path, port) as server:
            await asyncio.to_thread(gym_servers.until_up, server)
            await http.post(f"{engine.url}/pause")
            await at_work.submit([submitted])
            await until_calls(engine, 4)
            server.kill()
        with gym_servers.starting(COUNTER, tmp_path, port) as server:
            await asyncio.to_thread(gym_servers.until_up, server)
            await http.post(f"{engine.url}/resume")
            ends = await ended(at_work, submitted)
    assert [(one.state, one.reward) for one in ends] == [(RolloutState.DONE, 1.0)] * 4
    assert {one.attempt for one in ends} == {2}


async def test_tasks_are_checked_at_submission(tmp_path: Path) -> None:
    task = gym_servers.tasks_of(COUNTER)[0]
    elsewhere = task.model_copy(update={"data": {**task.data, "server": "http://elsewhere"}})
    other = task.model_copy(update={"messages": [Message(role="user", content="Say 6.")]})
    async with service("http://127.0.0.1:9", 1, tmp_path) as (at_work, _):
        for bad, problem in (
            (elsewhere, "no NeMo Gym server 'http://elsewhere'"),
            (other, r"they differ from data\.row\.responses_create_params"),
        ):
            with pytest.raises(InvalidRequest, match=problem):
                await at_work.submit([Group(group_id="g", task=bad)])
