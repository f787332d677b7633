"""The gateway as the service sees it: real HTTP, real Ray actors behind VeRL's own router."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest
import ray
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from prorl_service.errors import BackendRejected
from prorl_service.inference.backend import Backend, open_session
from prorl_service.inference.base import Generation
from prorl_service.schemas import Sampling
from prorl_verl.engines import Engines
from prorl_verl.gateway import Gateway
from tests.verl.counting_server import CountingServer

MAX_LEN = 64


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[list[Any], Any]]:
    """Two engines and their router."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, configure_logging=False)
    servers = [ray.remote(CountingServer).remote() for _ in range(2)]
    named = {f"server-{index}": server for index, server in enumerate(servers)}
    yield servers, ray.remote(GlobalRequestLoadBalancer).remote(servers=named)
    ray.shutdown()


@pytest.fixture
async def servers(cluster: tuple[list[Any], Any]) -> list[Any]:
    servers, balancer = cluster
    await balancer.clear_sticky_cache.remote()
    for server in servers:
        await server.reset.remote()
    return servers


@pytest.fixture
def engines(cluster: tuple[list[Any], Any], servers: list[Any]) -> Engines:
    _, balancer = cluster
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"full_determinism": False}}})
    return Engines(LLMServerClient(config, balancer), max_in_flight=4)


@pytest.fixture
async def backend(engines: Engines) -> AsyncIterator[Backend]:
    gateway = Gateway(engines, model="m", root="/models/m", max_model_len=MAX_LEN)
    port = await gateway.start("127.0.0.1", 0)
    async with open_session() as session:
        yield Backend(f"http://127.0.0.1:{port}", session)
    await gateway.stop()


async def generate(backend: Backend, session_id: str = "s", **changes: Any) -> Generation:
    arguments: dict[str, Any] = {"prompt_ids": [1, 2, 3], "max_tokens": 5, **changes}
    prompt_ids = arguments.pop("prompt_ids")
    return await backend.generate(
        prompt_ids, sampling=Sampling(), seed=None, session_id=session_id, **arguments
    )


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


async def total(servers: list[Any], name: str) -> int:
    seen = [await server.seen.remote() for server in servers]
    return sum(len(one[name]) if name == "prompts" else one[name] for one in seen)


async def test_ids_and_logprobs_pass_through(backend: Backend, servers: list[Any]) -> None:
    for server in servers:
        await server.set.remote(version=7)
    generation = await generate(backend)
    assert generation.token_ids == [103, 104, 105, 106, 107]
    assert generation.logprobs == [-0.25] * 5
    assert generation.policy_versions == [7] * 5
    assert generation.finish_reason == "length"
    info = await backend.describe()
    assert (info.model, info.root, info.max_model_len) == ("m", "/models/m", MAX_LEN)
    assert (info.policy_version, info.streams_weights, info.is_paused) == (7, False, False)


async def test_a_session_stays_with_its_engine(backend: Backend, servers: list[Any]) -> None:
    for session_id in ("a", "b"):
        for _ in range(3):
            await generate(backend, session_id)
    assert [len((await one.seen.remote())["prompts"]) for one in servers] == [3, 3]


async def test_a_call_goes_on_with_new_weights_and_says_where(
    backend: Backend, servers: list[Any]
) -> None:
    for server in servers:
        await server.set.remote(version=1, is_slow=True)
    call = asyncio.create_task(generate(backend))
    await until(lambda: _is(servers, "running", 1))
    for server in servers:
        await server.abort.remote(2)
    generation = await call
    assert generation.policy_versions == [1, 1, 2, 2, 2]
    assert generation.token_ids == [103, 104, 105, 106, 107]
    prompts = [one for server in servers for one in (await server.seen.remote())["prompts"]]
    assert prompts == [[1, 2, 3], [1, 2, 3, 103, 104]]


async def test_a_client_that_goes_away_ends_its_call(backend: Backend, servers: list[Any]) -> None:
    for server in servers:
        await server.set.remote(is_slow=True)
    call = asyncio.create_task(generate(backend))
    await until(lambda: _is(servers, "running", 1))
    call.cancel()
    await until(lambda: _is(servers, "cancelled", 1))
    assert await total(servers, "running") == 0


async def test_closed_engines_sample_nothing_and_lose_nothing(
    backend: Backend, engines: Engines, servers: list[Any]
) -> None:
    for server in servers:
        await server.set.remote(is_slow=True)
    calls = [asyncio.create_task(generate(backend, f"s{index}")) for index in range(3)]
    await until(lambda: _is(servers, "running", 3))
    await engines.close()
    assert await total(servers, "running") == 0
    for server in servers:
        await server.set.remote(version=1, is_slow=False)
    late = asyncio.create_task(generate(backend, "late"))
    await asyncio.sleep(0.3)
    assert await total(servers, "prompts") == 3
    engines.open()
    for call in (*calls, late):
        assert (await call).policy_versions == [1] * 5


async def test_no_more_calls_are_in_flight_than_allowed(
    backend: Backend, servers: list[Any]
) -> None:
    await asyncio.gather(*(generate(backend, f"s{index}") for index in range(40)))
    assert await total(servers, "most") <= 4


async def test_bad_requests_are_refused(backend: Backend) -> None:
    with pytest.raises(BackendRejected, match="no room"):
        await generate(backend, prompt_ids=[1] * MAX_LEN)
    assert len((await generate(backend, prompt_ids=[1] * (MAX_LEN - 2))).token_ids) == 2
    async with aiohttp.ClientSession() as session:
        answer = await session.post(f"{backend.url}/inference/v1/generate", data=b"{}")
        assert answer.status == 400


async def _is(servers: list[Any], name: str, wanted: int) -> bool:
    return await total(servers, name) == wanted
