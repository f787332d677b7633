"""Each switch: what the service does without the optimisation, and that its status says so."""

from dataclasses import replace

import pytest

from prorl_service.ablations.sampling import verdict_on_whole
from prorl_service.ablations.switches import NAMES, ROUTERS, Ablations
from prorl_service.client import AsyncRolloutClient
from prorl_service.errors import ProRLError
from prorl_service.inference.routing import EngineLoad, LeastExpectedTime, RouteRequest
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.sampling.filter import Outcome, Scores, outcome
from prorl_service.schemas import Group, Message, RolloutState, Stage, Task
from prorl_service.schemas.sampling import DrawSpec, Filter, SamplerSpec
from prorl_service.server.compose import rollout_service
from prorl_service.server.settings import ServiceSettings
from prorl_service.testing import StubEngine
from tests.ablations.counting_agent import COUNTING, Counting
from tests.server.application import Settings, finished, serving, until
from tests.server.draws import INFORMATIVE, drawn, scored_settings
from tests.server.scored_agent import scored


def _loads(*calls: int) -> dict[str, EngineLoad]:
    return {f"engine-{i}": EngineLoad(max_calls=4, calls=one) for i, one in enumerate(calls)}


def _call(session: str, pinned: str | None = None) -> RouteRequest:
    return RouteRequest(session, pinned, prompt_tokens=100, max_tokens=100)


async def test_an_unknown_switch_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ProRLError, match="--ablate speed: there is none; there are routing="):
        async with rollout_service(ServiceSettings(ablate=("speed",))):
            pass


def test_a_second_router_is_refused() -> None:
    with pytest.raises(ProRLError, match="one router"):
        Ablations.named(["routing=hash", "routing=random"])


def test_a_service_without_switches_has_its_own_parts() -> None:
    own = Ablations.named([])
    assert own.names == ()
    assert isinstance(own.router, LeastExpectedTime)
    assert own.verdict is outcome
    assert own.warm_sandboxes(8) == 8
    assert own.pipeline(PipelineConfig()) == PipelineConfig()


def test_all_switches_but_routers_combine() -> None:
    names = [name for name in NAMES if name not in ROUTERS]
    assert Ablations.named([*names, "routing=hash", *names]).names == (*names, "routing=hash")


@pytest.mark.parametrize("name", [name for name in ROUTERS if name != "routing=not-sticky"])
def test_a_session_stays_where_it_is_until_its_engine_is_gone(name: str) -> None:
    router = ROUTERS[name]()
    assert router.choose(_call("s", "engine-2"), _loads(3, 0, 3)) == "engine-2"
    assert router.choose(_call("s", "engine-2"), _loads(0, 0, 4)) is None
    assert router.choose(_call("s", "engine-2"), _loads(0, 0)) in ("engine-0", "engine-1")


def test_a_min_heap_and_round_robin_count_sessions_whatever_their_load() -> None:
    for name in ("routing=min-heap", "routing=round-robin"):
        router = ROUTERS[name]()
        chosen = [router.choose(_call(f"s{i}"), _loads(3, 0, 0)) for i in range(6)]
        assert chosen == ["engine-0", "engine-1", "engine-2"] * 2


def test_random_and_hash_routers_use_every_engine() -> None:
    for name in ("routing=random", "routing=hash"):
        router = ROUTERS[name]()
        chosen = {router.choose(_call(f"s{i}"), _loads(0, 0, 0)) for i in range(40)}
        assert chosen == {"engine-0", "engine-1", "engine-2"}


def test_a_router_that_is_not_sticky_leaves_the_engine_of_the_last_call() -> None:
    call, loads = _call("s", "engine-0"), _loads(2, 0)
    loads["engine-0"].begin(2000.0)
    assert LeastExpectedTime().choose(call, loads) == "engine-0"
    assert ROUTERS["routing=not-sticky"]().choose(call, loads) == "engine-1"


@pytest.mark.slow
async def test_in_turn_a_worker_holds_its_rollout_until_the_verdict(engine: StubEngine) -> None:
    settings = replace(
        scored_settings(engine), agents=(COUNTING,), pipeline=PipelineConfig(run_workers=2)
    )
    messages = [Message(role="user", content="Go.")]
    group = Group(group_id="g", n=8, task=Task(task_id="t", agent=Counting.name, messages=messages))
    assert await _most_at_work(settings, group, []) > 2
    assert await _most_at_work(settings, group, ["pipeline=serial"]) == 2


async def _most_at_work(settings: Settings, group: Group, switches: list[str]) -> int:
    Counting.most = 0
    async with (
        serving(replace(settings, ablate=tuple(switches))) as url,
        AsyncRolloutClient(url) as client,
    ):
        rollouts = await finished(client, group)
        assert {one.state for one in rollouts} == {RolloutState.DONE}
        status = await client.status()
        assert status.ablations == switches
        assert (status.workers[Stage.RUN] == 0) is bool(switches)
    return Counting.most


async def test_in_turn_a_rollout_is_cancelled_in_every_stage(engine: StubEngine) -> None:
    settings = replace(
        scored_settings(engine),
        pipeline=PipelineConfig(run_workers=1),
        ablate=("pipeline=serial",),
    )
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        long = scored("long", *INFORMATIVE, sleep=60.0)
        await client.submit([long])

        async def is_running() -> bool:
            return (await client.status()).rollouts.get(RolloutState.RUNNING) == 1

        await until(is_running)
        ended = await client.cancel(long.rollout_ids())
        assert {one.state for one in ended} == {RolloutState.CANCELLED}
        assert (await finished(client, scored("next", 1.0)))[0].state is RolloutState.DONE


@pytest.mark.slow
@pytest.mark.parametrize("switches", [[], ["sampler=no-cleanup"]])
async def test_without_cleanup_the_surplus_of_a_draw_runs_to_its_end(
    engine: StubEngine, switches: list[str]
) -> None:
    settings = replace(scored_settings(engine), ablate=tuple(switches))
    async with serving(settings) as url, AsyncRolloutClient(url) as client:
        await client.create_sampler("s", SamplerSpec(surplus="cancel"))
        surplus = scored("surplus", *INFORMATIVE, sleep=1.0)
        await client.add_candidates("s", [scored("quick", *INFORMATIVE), surplus])
        await client.open_draw("s", "d", DrawSpec(target=1))
        draw = await drawn(client)
        assert [one.candidate for one in draw.groups] == ["quick"]

        async def all_ended() -> bool:
            return sum((await client.status()).ended.values()) == 8

        await until(all_ended)
        status = await client.status()
        assert status.ablations == switches
        assert status.ended.get(RolloutState.CANCELLED, 0) == (0 if switches else 4)
        sampler = await client.sampler("s")
        assert (sampler.given, sampler.informative, sampler.waiting) == (1, 0, 1)


def test_without_early_verdicts_a_group_is_judged_when_it_is_whole() -> None:
    wanted = Filter(min_mean=0.5, lowest=0, highest=1)
    hopeless = Scores.of(0, 0, 0)
    assert outcome(hopeless, 4, wanted) is Outcome.UNINFORMATIVE
    verdict = Ablations.named(["sampler=no-early-verdict"]).verdict
    assert verdict is verdict_on_whole
    assert verdict(hopeless, 4, wanted) is Outcome.OPEN
    assert verdict(Scores.of(0, 0, 0, 1), 4, wanted) is Outcome.UNINFORMATIVE
    assert verdict(Scores.of(0, 1, 1, 1), 4, wanted) is Outcome.INFORMATIVE


async def test_a_sampler_without_early_verdicts_decides_none_early(engine: StubEngine) -> None:
    decided = {}
    for switch in ((), ("sampler=no-early-verdict",)):
        settings = replace(scored_settings(engine), ablate=switch)
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            wanted = Filter(min_mean=0.8, lowest=0, highest=1)
            await client.create_sampler("s", SamplerSpec(filter=wanted))
            hopeless = scored("hopeless", 0, 0, 0, 1)
            await client.add_candidates("s", [hopeless], is_last=True)
            await client.open_draw("s", "d", DrawSpec(target=1))
            await drawn(client)
            decided[switch] = (await client.sampler("s")).decided_early
    assert list(decided.values()) == [1, 0]
