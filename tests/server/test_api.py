import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.schemas import (
    BackendSpec,
    Blame,
    FinishReason,
    Rollout,
    RolloutState,
)
from prorl_service.schemas.arrays import PACKED_MEDIA_TYPE
from prorl_service.testing import StubEngine
from tests.sandbox.images.debian import debian_image
from tests.server.application import Settings, finished, group, serving

pytestmark = pytest.mark.processes

JSON = {"Content-Type": "application/json"}


async def test_rollouts_run_tools_in_a_sandbox_and_are_scored(
    client: AsyncRolloutClient, engine: StubEngine
) -> None:
    rollouts = await finished(client, group(n=4))
    for rollout in rollouts:
        assert rollout.state is RolloutState.DONE, rollout.error
        assert rollout.reward == 1.0
        assert rollout.reward_components == {
            "correct": 1.0,
            "answered": 1.0,
            "scoring_failed": 0.0,
            "well_formed": 1.0,
        }
        assert rollout.trajectory is not None
        assert rollout.trajectory.finish_reason is FinishReason.FINISHED
        assert [turn.tool_calls[0].output for turn in rollout.trajectory.turns[:1]] == ["4711"]
    assert engine.calls == 8


async def test_every_task_gets_its_image_and_warm_sandboxes_are_counted(
    engine: StubEngine,
) -> None:
    settings = Settings(backends=(BackendSpec(url=engine.url),), warm_sandboxes=2)
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        with_image = group("with-image", n=4)
        with_image.task.image = str(debian_image())
        for submitted in (with_image, group("without-image", n=4)):
            rollouts = await finished(client, submitted)
            assert [rollout.error for rollout in rollouts] == [None] * 4
            assert {rollout.reward for rollout in rollouts} == {1.0}
        async with httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/health")).json() == {"status": "ok"}
            metrics = await http.get("/metrics")
        counts = dict(line.split() for line in metrics.text.splitlines() if line[0] != "#")
        assert counts["prorl_sandboxes_running"] == "0.0"
        hits, misses = (float(counts[f"prorl_sandbox_{way}_total"]) for way in ("hits", "misses"))
        assert hits + misses == 8
        assert (await client.status()).sandbox == "apptainer+bubblewrap"


async def test_packed_and_plain_trajectories_are_equal(
    client: AsyncRolloutClient, http: httpx.AsyncClient
) -> None:
    await finished(client, group())
    plain = await http.get("/v1/rollouts/g.0")
    packed = await http.get("/v1/rollouts/g.0", headers={"Accept": PACKED_MEDIA_TYPE})
    assert isinstance(plain.json()["trajectory"]["segments"][0]["response_ids"], list)
    assert packed.headers["content-type"] == PACKED_MEDIA_TYPE
    assert "b64" in packed.json()["trajectory"]["segments"][0]["response_ids"]
    assert Rollout.model_validate_json(plain.content) == Rollout.model_validate_json(packed.content)


async def test_payload_is_linear_in_turns(client: AsyncRolloutClient) -> None:
    """Every id is sent once, however many turns there were."""
    (rollout,) = await finished(client, group())
    assert rollout.trajectory is not None
    (segment,) = rollout.trajectory.segments
    last = rollout.trajectory.turns[-1]
    assert last.stop == len(segment.response_ids)


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(body: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        target: Any = body
        for key in parents:
            target = target[int(key) if key.isdigit() else key]
        target[last] = value

    return apply


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("groups.0.task.agent", "nobody", "groups.0.task.agent"),
        ("groups.0.task.messages", [], "groups.0.task.messages"),
        (
            "groups.0.task.messages",
            [{"role": "king", "content": ""}],
            "groups.0.task.messages.0.role",
        ),
        ("groups.0.limits.max_turns", -1, "groups.0.limits.max_turns"),
        ("groups.0.limits.run_timeout_s", -0.5, "groups.0.limits.run_timeout_s"),
        ("groups.0.limits.run_timeout_s", float("inf"), "groups.0.limits.run_timeout_s"),
        ("groups.0.sampling.temperature", -1, "groups.0.sampling.temperature"),
        ("groups.0.n", 0, "groups.0.n"),
        ("groups.0.sampling.seed", 10**30, "groups.0.sampling.seed"),
        ("groups.0.sampling.top_k", 2**31, "groups.0.sampling.top_k"),
        ("groups.0.group_id", "g" * 191, "groups.0.group_id"),
        ("groups.0.task.messages.0.content", "\ud800", "groups.0.task.messages.0.content"),
        ("groups.0.task.data", {"answer": "\ud800"}, "groups.0.task.data"),
        ("groups.0.group_id", "a/b", "groups.0.group_id"),
        ("groups.0.retries", 3, "groups.0.retries"),
        ("groups.0.task.data", {}, "groups.0.task.data.answer"),
        ("groups.0.task.data", {"answer": "1", "file": {}}, "groups.0.task.data.file"),
        ("groups.0.task.image", "ubuntu:24.04", "groups.0.task.image"),
        ("groups", [], "groups"),
    ],
)
async def test_bad_input_names_the_field_and_starts_nothing(
    client: AsyncRolloutClient,
    http: httpx.AsyncClient,
    engine: StubEngine,
    path: str,
    value: Any,
    field: str,
) -> None:
    body = {"groups": [group().model_dump(mode="json")]}
    change(path, value)(body)
    response = await http.post("/v1/rollouts", content=json.dumps(body), headers=JSON)
    assert response.status_code == 422, response.text
    assert field in [problem["field"] for problem in response.json()["error"]["fields"]]
    assert (await client.status()).rollouts == {}
    assert engine.calls == 0


async def test_more_rollouts_than_a_request_may_hold_are_refused(
    client: AsyncRolloutClient, http: httpx.AsyncClient
) -> None:
    groups = [group(f"g{i}", n=4096).model_dump(mode="json") for i in range(5)]
    response = await http.post("/v1/rollouts", json={"groups": groups})
    assert response.status_code == 422
    assert "16384" in response.json()["error"]["message"]
    assert (await client.status()).rollouts == {}


async def test_the_longest_ids_work(client: AsyncRolloutClient) -> None:
    (rollout,) = await finished(client, group("g" * 190))
    assert rollout.state is RolloutState.DONE


async def test_a_prompt_longer_than_the_context_is_refused(
    client: AsyncRolloutClient, http: httpx.AsyncClient
) -> None:
    body = {"groups": [group().model_dump(mode="json")]}
    change("groups.0.task.messages", [{"role": "user", "content": "word " * 5000}])(body)
    response = await http.post("/v1/rollouts", json=body)
    assert response.status_code == 422
    (problem,) = response.json()["error"]["fields"]
    assert problem["field"] == "groups.0.task.messages"
    assert "4096" in problem["message"]
    assert (await client.status()).rollouts == {}


async def chunks(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // 65536):
        yield b" " * 65536


async def test_malformed_and_huge_bodies(http: httpx.AsyncClient) -> None:
    malformed = await http.post("/v1/rollouts", content=b'{"groups": [', headers=JSON)
    announced = await http.post("/v1/rollouts", content=b" " * 2_000_000)
    streamed = await http.post("/v1/rollouts", content=chunks(3_000_000))
    unknown = await http.get("/v2/nothing")
    assert malformed.status_code == 422
    assert malformed.json()["error"]["fields"][0]["field"] == "body"
    assert announced.status_code == streamed.status_code == 413
    assert announced.json()["error"]["kind"] == streamed.json()["error"]["kind"] == "TooLarge"
    assert unknown.status_code == 404
    assert unknown.json()["error"]["kind"] == "NotFound"


async def test_unknown_rollouts_and_backends(http: httpx.AsyncClient) -> None:
    answers = [
        await http.get("/v1/rollouts/nobody.0"),
        await http.post("/v1/rollouts/stream", json={"rollout_ids": ["nobody.0"]}),
        await http.post("/v1/rollouts/cancel", json={"rollout_ids": ["nobody.0"]}),
        await http.delete("/v1/backends/127.0.0.1:1"),
    ]
    assert [answer.status_code for answer in answers] == [404] * 4
    assert all(answer.json()["error"]["hint"] for answer in answers)


async def test_long_poll_returns_early_or_with_the_state(
    client: AsyncRolloutClient, engine: StubEngine
) -> None:
    engine.latency_s = 0.5
    await client.submit([group()])
    assert not (await client.get("g.0", wait_s=0)).is_terminal
    assert (await client.get("g.0", wait_s=30)).state is RolloutState.DONE


async def test_cancel_ends_rollouts_and_keeps_ended_ones(
    client: AsyncRolloutClient, engine: StubEngine
) -> None:
    await finished(client, group("done"))
    engine.latency_s = 60
    await client.submit([group("slow", n=3)])
    answers = await client.cancel(["done.0", *group("slow", n=3).rollout_ids()])
    states = {rollout.rollout_id: rollout.state for rollout in answers}
    assert states.pop("done.0") is RolloutState.DONE
    assert set(states.values()) == {RolloutState.CANCELLED}


async def test_a_file_that_cannot_be_placed_is_the_tasks_fault(client: AsyncRolloutClient) -> None:
    data = {"answer": "1", "files": {"/usr/bin/ls": "mine now"}}
    misplaced = group().model_copy(update={"task": group().task.model_copy(update={"data": data})})
    (failed,) = await finished(client, misplaced)
    assert failed.error is not None
    assert (failed.error.blame, failed.error.retryable) == (Blame.TASK, False)


async def test_an_unreachable_backend_is_refused_with_its_address(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/backends", json={"url": "http://127.0.0.1:9"})
    assert response.status_code == 503
    assert "127.0.0.1:9" in response.json()["error"]["message"]


async def test_the_api_page_lists_every_route_and_needs_no_internet(
    http: httpx.AsyncClient,
) -> None:
    page = (await http.get("/docs")).text
    paths = (await http.get("/openapi.json")).json()["paths"]
    assert "https://" not in page
    assert {"/v1/rollouts", "/v1/rollouts/stream", "/v1/backends", "/v1/weights"} <= set(paths)


async def test_acknowledged_groups_are_forgotten(client: AsyncRolloutClient) -> None:
    await finished(client, group(n=2))
    await client.acknowledge(["g", "never-there"])
    await client.acknowledge(["g"])
    assert (await client.status()).rollouts == {}
    with pytest.raises(ServiceCallError, match="there is no rollout") as refused:
        await client.get("g.0", shelf=False)
    assert refused.value.http_status == 404


async def test_unfinished_groups_cannot_be_acknowledged(
    client: AsyncRolloutClient, engine: StubEngine
) -> None:
    engine.latency_s = 5
    await client.submit([group()])
    with pytest.raises(ServiceCallError, match="have not ended") as refused:
        await client.acknowledge(["g"])
    assert refused.value.http_status == 409
    await client.cancel(["g.0"])
