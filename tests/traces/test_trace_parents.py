"""Traces as children of a training step's span, wherever the rollouts are run."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from prorl_service import local
from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.schemas import Group, RolloutState, SubmitRequest
from prorl_service.schemas.sampling import DrawSpec, SamplerSpec
from prorl_service.testing import StubEngine
from tests.client.parents import SPAN, STEP, TRACE, step
from tests.server.application import finished, until
from tests.server.draws import INFORMATIVE, drawn
from tests.server.scored_agent import scored
from tests.traces.agents import telling
from tests.traces.collector import Collector
from tests.traces.conftest import OPTIONS, service

pytestmark = pytest.mark.processes


async def assert_children_of_the_step(collector: Collector, rollouts: int) -> None:
    await asyncio.to_thread(collector.wait_for, rollouts)
    assert len(collector.roots()) == rollouts
    for root in collector.roots():
        assert (root.trace_id, root.parent_id) == (f"{TRACE:032x}", f"{SPAN:016x}")
    assert {one.trace_id for one in collector.spans} == {f"{TRACE:032x}"}


async def test_rollouts_are_children_of_the_span_in_which_they_were_submitted(
    client: AsyncRolloutClient, collector: Collector
) -> None:
    with step():
        await finished(client, telling("g", n=2))
    await assert_children_of_the_step(collector, 2)
    ids = {(one.trace_id, one.span_id) for one in collector.roots()}
    for root in collector.roots():
        assert {*root.links} == ids - {(root.trace_id, root.span_id)}


async def test_groups_whose_parent_is_not_recorded_are_not_traced(
    client: AsyncRolloutClient, collector: Collector
) -> None:
    with step(is_sampled=False):
        await finished(client, telling("unrecorded"))
    with step():
        await finished(client, telling("g"))
    await assert_children_of_the_step(collector, 1)


@pytest.mark.parametrize("header", ["", "00-x-y-01", STEP + "-more", f"00-{0:032x}-{1:016x}-01"])
async def test_an_invalid_traceparent_header_is_ignored(
    header: str, client: AsyncRolloutClient, collector: Collector
) -> None:
    body = SubmitRequest(groups=[telling("g")]).model_dump(mode="json")
    headers = {**client._http.headers, "traceparent": header}
    async with httpx.AsyncClient(base_url=client._http.base_url, headers=headers) as http:
        answer = await http.post("/v1/rollouts", json=body)
    assert answer.status_code == 202
    await asyncio.to_thread(collector.wait_for, 1)
    assert collector.roots()[0].parent_id == ""


async def test_a_groups_own_parent_is_validated_and_overrides_the_header(
    client: AsyncRolloutClient, collector: Collector
) -> None:
    with step(TRACE + 7):
        await finished(client, telling("g").model_copy(update={"traceparent": STEP}))
    await assert_children_of_the_step(collector, 1)
    odd = telling("odd").model_copy(update={"traceparent": "odd"})
    with pytest.raises(ServiceCallError, match=r"groups\.0\.traceparent"):
        await client.submit([odd])


async def test_a_group_submitted_again_in_another_step_is_the_same_group(
    client: AsyncRolloutClient, collector: Collector
) -> None:
    with step():
        (rollout,) = await finished(client, telling("g"))
    with step(TRACE + 1):
        (again,) = await client.submit([telling("g")])
    assert again.state is rollout.state is RolloutState.DONE
    await assert_children_of_the_step(collector, 1)


async def test_the_parent_outlives_the_service(
    engine: StubEngine, collector: Collector, tmp_path: Path
) -> None:
    options = ("--otel-endpoint", collector.url, "--journal", str(tmp_path / "j.sqlite"))
    async with (
        service(engine, tmp_path, *options) as running,
        AsyncRolloutClient(running.url) as client,
    ):
        with step():
            await client.submit([telling("g", n=2, sleep=2)])
        await until(client.status, lambda status: status.rollouts.get(RolloutState.RUNNING) == 2)
        running.kill()
    async with service(engine, tmp_path, *options, "--resume", name="again"):
        await assert_children_of_the_step(collector, 2)
    assert {one.attributes["prorl.attempt"] for one in collector.roots()} == {2}


async def test_candidates_of_a_sampler_are_children_of_the_span_in_which_they_were_given(
    client: AsyncRolloutClient, collector: Collector
) -> None:
    await client.create_sampler("s", SamplerSpec())
    with step():
        await client.add_candidates("s", [scored("a", *INFORMATIVE)])
    await client.open_draw("s", "d", DrawSpec(target=1))
    assert len((await drawn(client)).groups) == 1
    await assert_children_of_the_step(collector, len(INFORMATIVE))


@pytest.mark.parametrize("at", ["service", "front"])
async def test_a_front_passes_the_parent_on(
    at: str, engine: StubEngine, collector: Collector, tmp_path: Path
) -> None:
    """Whichever of the two exports."""
    traced = ("--otel-endpoint", collector.url)
    submitted: list[Group] = [scored(f"g{number}", 1, 0) for number in range(3)]
    announced = tmp_path / "services" / "a.json"
    async with AsyncExitStack() as stack:
        behind = local.service(
            [],
            log=tmp_path / "service.log",
            options=[*OPTIONS, "--announce", str(announced), *(traced if at == "service" else ())],
        )
        await asyncio.to_thread(behind.__enter__)
        stack.push_async_callback(asyncio.to_thread, behind.__exit__, None, None, None)
        starting = local.front(
            announced.parent,
            [engine.url],
            log=tmp_path / "front.log",
            options=["--agent", OPTIONS[3], *(traced if at == "front" else ())],
        )
        running = await asyncio.to_thread(starting.__enter__)
        stack.push_async_callback(asyncio.to_thread, starting.__exit__, None, None, None)
        client = await stack.enter_async_context(AsyncRolloutClient(running.url))
        with step():
            await client.submit(submitted)
        await client.wait([one for group in submitted for one in group.rollout_ids()], 60)
        await assert_children_of_the_step(collector, 6)
    for root in collector.roots():
        visits = [one.name for one in collector.below(root)]
        assert visits == ["prorl.init", "prorl.run", "prorl.eval"]
        assert root.attributes["gen_ai.request.model"] == "stub"
