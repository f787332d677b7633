"""The gateway as the service sees it: real HTTP, real Ray actors behind VeRL's own router."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient

from prorl_service.client.engine_gateway import Gateway
from prorl_service.errors import BackendLent, BackendRejected
from prorl_service.inference.backend import Backend
from prorl_service.inference.base import Generation
from prorl_service.inference.connections import Connections
from prorl_service.inference.engines.base import EngineCall
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.schemas import Sampling
from prorl_verl.engines import Engines
from tests.verl.counting_server import CONFIG, balancer_of, counting

MAX_LEN = 64
KEY = "the-key-of-this-start"


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[list[Any], Any]]:
    """Yields two engines and their router."""
    with counting(2) as servers:
        yield servers, balancer_of(named(servers))


def named(servers: list[Any]) -> dict[str, Any]:
    return {f"server-{index}": server for index, server in enumerate(servers)}


@pytest.fixture
async def servers(cluster: tuple[list[Any], Any]) -> list[Any]:
    servers, balancer = cluster
    await balancer.add_servers.remote(named(servers))
    await balancer.clear_sticky_cache.remote()
    for server in servers:
        await server.reset.remote()
    return servers


@pytest.fixture
def engines(cluster: tuple[list[Any], Any], servers: list[Any]) -> Engines:
    _, balancer = cluster
    return Engines(LLMServerClient(CONFIG, balancer), max_in_flight=4)


@asynccontextmanager
async def gateway(engines: Engines) -> AsyncIterator[Backend]:
    """Yields a gateway as the service sees it."""
    model = {"model": "m", "root": "/models/m", "api_key": KEY}
    gateway = Gateway(engines, max_model_len=MAX_LEN, **model)
    port = await gateway.start("127.0.0.1", 0)
    async with aclosing(Connections()) as connections:
        yield Backend(f"http://127.0.0.1:{port}", connections, api_key=KEY)
    await gateway.stop()


@pytest.fixture
async def backend(engines: Engines) -> AsyncIterator[Backend]:
    async with gateway(engines) as backend:
        yield backend


async def generate(backend: Backend, session_id: str = "s", **changes: Any) -> Generation:
    prompt = EncodedPrompt(changes.pop("prompt_ids", [1, 2, 3]))
    call = EngineCall(prompt, Sampling(), 5, None, session_id)
    return await backend.generate(replace(call, **changes))


async def have_all(servers: list[Any], **values: Any) -> None:
    for server in servers:
        await server.set.remote(**values)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)


async def total(servers: list[Any], name: str) -> int:
    seen = [await server.seen.remote() for server in servers]
    return sum(len(one[name]) if name == "prompts" else one[name] for one in seen)


async def test_ids_and_logprobs_pass_through(backend: Backend, servers: list[Any]) -> None:
    await have_all(servers, version=7)
    generation = await generate(backend)
    assert generation.token_ids == [103, 104, 105, 106, 107]
    assert generation.logprobs == [-0.25] * 5
    assert generation.policy_versions == [7] * 5
    assert generation.finish_reason == "length"
    info = await backend.describe()
    assert (info.model, info.root, info.max_model_len) == ("m", "/models/m", MAX_LEN)
    assert (info.policy_version, backend.engine.kind, info.is_paused) == (7, "vllm", False)


@pytest.mark.parametrize(("engine", "name"), [("vllm", "seed"), ("sglang", "sampling_seed")])
async def test_a_seed_has_the_name_that_the_engine_knows(
    cluster: tuple[list[Any], Any], servers: list[Any], engine: str, name: str
) -> None:
    engines = Engines(LLMServerClient(CONFIG, cluster[1]), max_in_flight=4, engine=engine)
    async with gateway(engines) as backend:
        await generate(backend, seed=5)
    [given] = [one for server in servers for one in (await server.seen.remote())["parameters"]]
    assert {key: value for key, value in given.items() if "seed" in key} == {name: 5}


async def test_stop_texts_reach_the_engine(backend: Backend, servers: list[Any]) -> None:
    for stop in ([], ["Observation:"]):
        await generate(backend, stop=stop)
    given = [one for server in servers for one in (await server.seen.remote())["parameters"]]
    assert sorted(one.get("stop", []) for one in given) == [[], ["Observation:"]]


async def test_a_session_stays_with_its_engine(backend: Backend, servers: list[Any]) -> None:
    sessions = range(6)
    for _ in range(4):
        for number in sessions:
            await generate(backend, f"s{number}", prompt_ids=[number])
    seen = [(await one.seen.remote())["prompts"] for one in servers]
    assert {prompts.count([number]) for prompts in seen for number in sessions} <= {0, 4}
    assert sum(map(len, seen)) == 4 * len(sessions)


async def test_a_call_continues_with_new_weights_and_reports_their_versions(
    backend: Backend, servers: list[Any]
) -> None:
    await have_all(servers, version=1, is_slow=True)
    call = asyncio.create_task(generate(backend))
    await until(lambda: _is(servers, "running", 1))
    for server in servers:
        await server.abort.remote(2)
    generation = await call
    assert generation.policy_versions == [1, 1, 2, 2, 2]
    assert generation.token_ids == [103, 104, 105, 106, 107]
    prompts = [one for server in servers for one in (await server.seen.remote())["prompts"]]
    assert prompts == [[1, 2, 3], [1], [1, 2, 3, 103, 104]]  # the second is a probe for an engine


async def test_calls_of_an_engine_that_leaves_go_to_another(
    backend: Backend, servers: list[Any], cluster: tuple[list[Any], Any]
) -> None:
    """The engine may turn calls away before the router knows that it has left."""
    await have_all(servers, version=1, has_left=True)
    call = asyncio.create_task(generate(backend))
    await until(lambda: _is_above(servers, "prompts", 1))
    (left,) = [one for one in servers if (await one.seen.remote())["prompts"]]
    (other,) = [one for one in servers if one is not left]
    await other.set.remote(version=2, has_left=False)
    await cluster[1].remove_servers.remote([f"server-{servers.index(left)}"])
    generation = await call
    assert generation.policy_versions == [2] * 5
    assert (await other.seen.remote())["prompts"] == [[1], [1, 2, 3]]


async def test_calls_wait_while_all_engines_are_away(
    servers: list[Any], cluster: tuple[list[Any], Any]
) -> None:
    _, balancer = cluster
    client = FullyAsyncLLMServerClient(CONFIG, balancer, only_hybrid=True)
    engines = Engines(client, max_in_flight=4)
    await balancer.remove_servers.remote(list(named(servers)))
    call = asyncio.create_task(engines.generate("s", [1, 2, 3], {}, 5))
    await asyncio.sleep(0.3)
    assert not call.done()
    await balancer.add_servers.remote(named(servers))
    assert (await call).token_ids == [103, 104, 105, 106, 107]


async def test_a_client_that_goes_away_cancels_its_call(
    backend: Backend, servers: list[Any]
) -> None:
    await have_all(servers, is_slow=True)
    call = asyncio.create_task(generate(backend))
    await until(lambda: _is(servers, "running", 1))
    call.cancel()
    await until(lambda: _is(servers, "cancelled", 1))
    assert await total(servers, "running") == 0


async def test_closed_engines_sample_nothing_and_give_calls_back(
    backend: Backend, engines: Engines, servers: list[Any]
) -> None:
    await have_all(servers, is_slow=True)
    calls = [asyncio.create_task(generate(backend, f"s{index}")) for index in range(3)]
    await until(lambda: _is(servers, "running", 3))
    await engines.close()
    assert await total(servers, "running") == 0
    info = await backend.describe()
    assert info.is_paused
    assert info.is_lent
    await have_all(servers, version=1, is_slow=False)
    for call in (*calls, asyncio.create_task(generate(backend, "late"))):
        with pytest.raises(BackendLent):
            await call
    assert await total(servers, "prompts") == 3
    engines.open()
    assert not (await backend.describe()).is_lent
    assert (await generate(backend, "late")).policy_versions == [1] * 5


async def test_engines_are_lent_until_an_aborted_call_can_continue(
    backend: Backend, servers: list[Any], engines: Engines
) -> None:
    news: list[bool] = []
    engines.on_change = lambda: news.append(engines.is_lent)
    await have_all(servers, version=1, is_slow=True)
    call = asyncio.create_task(generate(backend))
    await until(lambda: _is(servers, "running", 1))
    for server in servers:
        await server.abort.remote(2)
        await server.set.remote(has_left=True)
    await until(lambda: _is_above(servers, "prompts", 2))
    assert (await backend.describe()).is_lent
    await have_all(servers, has_left=False)
    assert (await call).policy_versions == [1, 1, 2, 2, 2]
    assert not (await backend.describe()).is_lent
    assert news == [True, False]


async def test_calls_in_flight_stay_within_the_limit(backend: Backend, servers: list[Any]) -> None:
    await asyncio.gather(*(generate(backend, f"s{index}") for index in range(40)))
    assert await total(servers, "most") <= 4


async def test_bad_requests_are_refused(backend: Backend) -> None:
    with pytest.raises(BackendRejected, match="no room"):
        await generate(backend, prompt_ids=[1] * MAX_LEN)
    assert len((await generate(backend, prompt_ids=[1] * (MAX_LEN - 2))).token_ids) == 2
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client:
        answer = await client.post(f"{backend.url}/inference/v1/generate", content=b"{}")
        assert answer.status_code == 400


@pytest.mark.parametrize("given", [None, "Bearer wrong", KEY, f"Basic {KEY}", "Bearer"])
async def test_the_gateway_answers_only_the_service(
    backend: Backend, servers: list[Any], given: str | None
) -> None:
    body = {"token_ids": [1], "sampling_params": {"max_tokens": 1, "temperature": 1}}
    routes = {"/health": "GET", "/v1/models": "GET", "/inference/v1/generate": "POST"}
    headers = {} if given is None else {"Authorization": given}
    async with httpx.AsyncClient(headers=headers) as client:
        for path, method in {**routes, "/no/such/route": "GET"}.items():
            answer = await client.request(method, f"{backend.url}{path}", json=body)
            assert answer.status_code == 401
            assert KEY not in answer.text
    assert await total(servers, "prompts") == 0


async def _is(servers: list[Any], name: str, wanted: int) -> bool:
    return await total(servers, name) == wanted


async def _is_above(servers: list[Any], name: str, least: int) -> bool:
    return await total(servers, name) > least
