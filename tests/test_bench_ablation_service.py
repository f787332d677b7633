"""Each switch of `bench.ablation.service`: what a service does without the optimisation."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from bench.ablation.service import ROUTERS, replaced, verdict_on_whole
from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.client import AsyncRolloutClient
from prorl_service.inference.routing import EngineLoad, LeastExpectedTime, RouteRequest
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.sampling.filter import GroupState, Scores, outcome
from prorl_service.schemas import FinishReason, Group, Message, RolloutState, Stage, Task
from prorl_service.schemas.sampling import DrawSpec, Filter, SamplerSpec
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.server.application import Settings, finished, serving, until
from tests.server.draws import INFORMATIVE, drawn, scored_settings
from tests.server.scored_agent import scored

EVAL_S = 0.05


class Counting(AgentHandler):
    """Counts how many of its rollouts are between the start of INIT and the verdict."""

    name: ClassVar[str] = "counting"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset()
    at_work: ClassVar[int] = 0
    most: ClassVar[int] = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

    async def init(self, rollout: RolloutContext) -> None:
        Counting.at_work += 1
        Counting.most = max(Counting.most, Counting.at_work)

    async def run(self, rollout: RolloutContext) -> FinishReason:
        await rollout.sample(rollout.prompt_ids)
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        await asyncio.sleep(EVAL_S)
        Counting.at_work -= 1
        return Verdict(1.0)


@pytest.fixture
async def engine(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[StubEngine]:
    async with StubEngine(tiny_model, lambda _: [5, 6, chat.end_of_turn_id]) as stub:
        yield stub


@asynccontextmanager
async def _client(settings: Settings, switches: Sequence[str]) -> AsyncIterator[AsyncRolloutClient]:
    with replaced(switches):
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            yield client


def _loads(*calls: int) -> dict[str, EngineLoad]:
    return {f"engine-{i}": EngineLoad(max_calls=4, calls=one) for i, one in enumerate(calls)}


def _call(session: str, pinned: str | None = None) -> RouteRequest:
    return RouteRequest(session, pinned, prompt_tokens=100, max_tokens=100)


@pytest.mark.parametrize("name", [name for name in ROUTERS if name != "routing=not-sticky"])
def test_a_session_stays_where_it_is_until_its_engine_is_gone(name: str) -> None:
    router = ROUTERS[name]()
    assert router.choose(_call("s", "engine-2"), _loads(3, 0, 3)) == "engine-2"
    assert router.choose(_call("s", "engine-2"), _loads(0, 0, 4)) is None
    assert router.choose(_call("s", "engine-2"), _loads(0, 0)) in ("engine-0", "engine-1")


def test_a_min_heap_counts_sessions_whatever_their_load() -> None:
    router = ROUTERS["routing=min-heap"]()
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
    workers = PipelineConfig(init_workers=2, run_workers=2, ready_rollouts=1)
    counting = f"{__name__}:{Counting.__name__}"
    settings = replace(scored_settings(engine), agents=(counting,), pipeline=workers)
    messages = [Message(role="user", content="Go.")]
    group = Group(group_id="g", n=8, task=Task(task_id="t", agent=Counting.name, messages=messages))
    assert await _most_at_work(settings, group, []) > 2
    assert await _most_at_work(settings, group, ["pipeline=serial"]) == 2


async def _most_at_work(settings: Settings, group: Group, switches: list[str]) -> int:
    Counting.most = 0
    async with _client(settings, switches) as client:
        rollouts = await finished(client, group)
        assert {one.state for one in rollouts} == {RolloutState.DONE}
        assert ((await client.status()).workers[Stage.RUN] == 0) is bool(switches)
    return Counting.most


@pytest.mark.slow
@pytest.mark.parametrize("switches", [[], ["sampler=no-cleanup"]])
async def test_without_cleanup_the_surplus_of_a_draw_runs_to_its_end(
    engine: StubEngine, switches: list[str]
) -> None:
    async with _client(scored_settings(engine), switches) as client:
        await client.create_sampler("s", SamplerSpec(surplus="cancel"))
        surplus = scored("surplus", *INFORMATIVE, sleep=1.0)
        await client.add_candidates("s", [scored("quick", *INFORMATIVE), surplus])
        await client.open_draw("s", "d", DrawSpec(target=1))
        draw = await drawn(client)
        assert [one.candidate for one in draw.groups] == ["quick"]
        await until(client.status, lambda status: sum(status.ended.values()) == 8)
        ended = (await client.status()).ended
        assert ended.get(RolloutState.CANCELLED, 0) == (0 if switches else 4)
        sampler = await client.sampler("s")
        assert (sampler.given, sampler.informative, sampler.waiting) == (1, 0, 1)


def test_without_early_verdicts_a_group_is_judged_when_it_is_whole() -> None:
    wanted = Filter(min_mean=0.5, lowest=0, highest=1)
    hopeless = Scores.of(0, 0, 0)
    assert outcome(hopeless, 4, wanted) is GroupState.UNINFORMATIVE
    assert verdict_on_whole(hopeless, 4, wanted) is GroupState.UNDER_WAY
    assert verdict_on_whole(Scores.of(0, 0, 0, 1), 4, wanted) is GroupState.UNINFORMATIVE
    assert verdict_on_whole(Scores.of(0, 1, 1, 1), 4, wanted) is GroupState.INFORMATIVE


async def test_a_sampler_without_early_verdicts_decides_none_early(engine: StubEngine) -> None:
    decided = []
    for switches in ([], ["sampler=no-early-verdict"]):
        async with _client(scored_settings(engine), switches) as client:
            wanted = Filter(min_mean=0.8, lowest=0, highest=1)
            await client.create_sampler("s", SamplerSpec(filter=wanted))
            hopeless = scored("hopeless", 0, 0, 0, 1)
            await client.add_candidates("s", [hopeless], is_last=True)
            await client.open_draw("s", "d", DrawSpec(target=1))
            await drawn(client)
            decided.append((await client.sampler("s")).decided_early)
    assert decided == [1, 0]
