"""A trainer written for ProRL Agent, as its code calls its server."""

import asyncio
from typing import Any

import httpx
import pytest

from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import RolloutState
from prorl_service.testing import StubEngine

pytestmark = pytest.mark.processes

INSTANCE = {
    "data_source": "math",
    "trajectory_id": "t-1",
    "instance_id": "i-1",
    "prompt": "What is the secret number?",
    "answer": "4711",
    "files": {"secret": "4711\n"},
}
PARAMS = {"temperature": 1.0, "max_iterations": 4, "token_level_generation": True, "model": "m"}


async def in_flight(engine: StubEngine, calls: int) -> None:
    for _ in range(2000):
        if engine.in_flight == calls:
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def process(http: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    instance = INSTANCE | changes.pop("instance", {})
    return await http.post(
        "/process", json={"instance": instance, "sampling_params": PARAMS} | changes
    )


async def test_the_order_of_calls_that_a_trainer_makes(
    http: httpx.AsyncClient, engine: StubEngine
) -> None:
    assert (await http.post("/clear_llm_server")).json() == {"status": "cleared"}
    assert (await http.get("/v1/backends")).json() == {"backends": []}
    address = engine.url.removeprefix("http://") + "/v1"
    assert (await http.post("/add_llm_server", json={"address": address})).is_success
    assert (await http.post("/start")).json() == {"status": "started"}
    results = [answer.json() for answer in await asyncio.gather(*(process(http) for _ in range(4)))]
    for result in results:
        assert result["success"]
        assert result["resolved"]
        assert result["critical_error"] is None
        assert (result["instance_id"], result["trajectory_id"]) == ("i-1", "t-1")
        assert not result["filter"]
        assert result["finish"]
        assert result["end_properly"]
        assert result["timing"]["run_time"] > 0
        assert result["tools"][0]["function"]["name"] == "bash"
    assert (await http.get("/status")).json()["pending_jobs"] == 0
    assert (await http.post("/stop")).json() == {"status": "stopped"}


async def test_the_messages_are_the_trajectory(
    http: httpx.AsyncClient, client: AsyncRolloutClient
) -> None:
    await http.post("/start")
    result = (await process(http, job_id="job")).json()
    rollout = await client.get(result["rollout_id"])
    assert rollout.trajectory is not None
    (segment,) = rollout.trajectory.segments
    roles = [message["role"] for message in result["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant"]
    contents = [message["content"] for message in result["messages"]]
    assert contents[0].endswith("What is the secret number?")
    assert contents[2] == rollout.trajectory.turns[0].tool_calls[0].output
    ids = [one for message in result["messages"] for one in message["token_ids"]]
    assert ids == [*segment.prompt_ids, *segment.response_ids]
    mask = [
        int(message["role"] == "assistant")
        for message in result["messages"][1:]
        for _ in message["token_ids"]
    ]
    assert mask == list(segment.loss_mask)
    logprobs = [
        one
        for message in result["messages"][1:]
        for one in message["logprobs"] or [0.0] * len(message["token_ids"])
    ]
    assert logprobs == pytest.approx(list(segment.logprobs))


async def test_status_codes_say_what_happened(http: httpx.AsyncClient) -> None:
    for method, path in (("POST", "/stop"), ("GET", "/status")):
        assert (await http.request(method, path)).status_code == 503
    assert (await process(http)).status_code == 503
    assert (await http.post("/start")).status_code == 200
    assert (await http.post("/start")).status_code == 409
    assert (await http.post("/cancel", json={"job_id": "nobody"})).status_code == 404
    wrong = [
        await process(http, instance={"data_source": "chess"}),
        await process(http, instance={"answer": None}),
        await process(http, instance={"prompt": None}),
        await process(http, instance={"instance_id": {}}),
        await process(http, sampling_params={"temprature": 1}),
        await http.post("/add_llm_server", json={"address": "http://"}),
    ]
    assert [answer.status_code for answer in wrong] == [422] * len(wrong)
    assert "math" in wrong[0].json()["error"]["hint"]


async def test_siblings_with_the_id_of_one_job_are_sampled_each(http: httpx.AsyncClient) -> None:
    """NeMo Gym's agent sends the instance's id with each sample of it."""
    await http.post("/start")
    later = (await process(http, job_id="i-1")).json()
    at_once = await asyncio.gather(*(process(http, job_id="i-1") for _ in range(3)))
    results = [later, *(answer.json() for answer in at_once)]
    assert {result["job_id"] for result in results} == {"i-1"}
    assert all(result["resolved"] for result in results)
    assert len({result["rollout_id"] for result in results}) == 4
    assert (await http.post("/cancel", json={"job_id": "i-1"})).status_code == 404


async def test_a_call_that_is_repeated_by_its_key_has_the_same_rollout(
    http: httpx.AsyncClient,
) -> None:
    await http.post("/start")
    http.headers["Idempotency-Key"] = "1"
    twice = await asyncio.gather(process(http, job_id="i-1"), process(http, job_id="i-1"))
    results = [answer.json() for answer in [*twice, await process(http, job_id="i-1")]]
    assert len({result["rollout_id"] for result in results}) == 1
    http.headers["Idempotency-Key"] = "2"
    other = (await process(http, job_id="i-1")).json()
    assert other["rollout_id"] != results[0]["rollout_id"]


async def test_a_job_is_cancelled_with_all_its_calls(
    http: httpx.AsyncClient, engine: StubEngine
) -> None:
    engine.latency_s = 30
    await http.post("/start")
    calls = [asyncio.create_task(process(http, job_id="slow")) for _ in range(2)]
    await in_flight(engine, 2)
    assert (await http.get("/status")).json()["active_run"] == 2
    answer = await http.post("/cancel", json={"job_id": "slow"})
    assert answer.json() == {"status": "cancelled"}
    for call in calls:
        result = (await call).json()
        assert (result["critical_error"], result["filter"]) == ("cancelled", True)


async def test_a_client_that_hangs_up_cancels_its_job(
    http: httpx.AsyncClient, engine: StubEngine, client: AsyncRolloutClient
) -> None:
    engine.latency_s = 30
    await http.post("/start")
    with pytest.raises(httpx.ReadTimeout):
        await http.post("/process", json={"instance": INSTANCE, "job_id": "left"}, timeout=1)
    [row] = (await http.get("/v1/rollouts")).json()["rollouts"]
    rollout = await client.get(row["rollout_id"], wait_s=20)
    assert rollout.state is RolloutState.CANCELLED


async def test_stopping_cancels_all_jobs(http: httpx.AsyncClient, engine: StubEngine) -> None:
    engine.latency_s = 30
    await http.post("/start")
    jobs = [asyncio.create_task(process(http)) for _ in range(3)]
    await in_flight(engine, 3)
    await http.post("/stop")
    assert {(await job).json()["critical_error"] for job in jobs} == {"cancelled"}
