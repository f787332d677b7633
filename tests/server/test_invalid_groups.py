"""Groups whose task cannot run: refused with all others, or failed alone."""

from collections.abc import AsyncIterator
from typing import ClassVar

import pytest

from prorl_service.agents.base import AgentHandler
from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.schemas import BackendSpec, Blame, Group, Message, RolloutState, Task
from prorl_service.schemas.sampling import DrawSpec, DrawState, SamplerSpec
from prorl_service.testing import StubEngine
from tests.server.application import Settings, group, serving
from tests.server.draws import drawn
from tests.server.scored_agent import SCORED, Scored, scored


class Broken(Scored):
    """An agent whose constructor fails."""

    name: ClassVar[str] = "broken"

    def __init__(self, task: Task) -> None:
        raise KeyError("answer")


@pytest.fixture
async def url(engine: StubEngine) -> AsyncIterator[str]:
    agents = (SCORED, "tests.server.test_invalid_groups:Broken")
    settings = Settings(backends=(BackendSpec(url=engine.url),), sandbox="process", agents=agents)
    async with serving(settings) as address:
        yield address


def of_agent(name: str, agent: type[AgentHandler] | str) -> Group:
    bad = scored(name, 0, 1)
    bad.task.agent = agent if isinstance(agent, str) else agent.name
    return bad


def invalid_groups() -> dict[str, tuple[Group, Blame, str]]:
    """Groups that cannot run, with their blame and reason, keyed by name."""
    too_long = scored("long", 0, 1)
    too_long.task.messages = [Message(role="user", content="Go on. " * 5000)]
    no_answer = group("data", n=2)
    no_answer.task.data = {}
    return {
        "agent": (of_agent("agent", "stranger"), Blame.TASK, "no agent 'stranger'"),
        "long": (too_long, Blame.TASK, "the model takes 4096"),
        "data": (no_answer, Blame.TASK, "task read: data.answer: Field required"),
        "broken": (of_agent("broken", Broken), Blame.AGENT, "KeyError: 'answer'"),
    }


@pytest.mark.parametrize("name", invalid_groups())
async def test_a_group_that_cannot_run_is_refused_with_all_others(
    client: AsyncRolloutClient, name: str
) -> None:
    bad, blame, message = invalid_groups()[name]
    with pytest.raises(ServiceCallError, match=message) as refusal:
        await client.submit([scored("good", 0, 1), bad])
    assert refusal.value.http_status == 422
    assert refusal.value.blame is blame
    assert (await client.status()).rollouts == {}


async def test_only_groups_that_cannot_run_fail_if_the_trainer_asks_for_that(
    client: AsyncRolloutClient,
) -> None:
    invalid = invalid_groups()
    await client.submit(
        [scored("good", 0, 1), *(bad for bad, _, _ in invalid.values())], invalid="fail"
    )
    good = await client.wait(["good.0", "good.1"], 60)
    assert [one.reward for one in good] == [0, 1]
    for bad, blame, message in invalid.values():
        for rollout in await client.wait(bad.rollout_ids(), 60):
            assert rollout.state is RolloutState.FAILED
            assert rollout.error is not None
            assert rollout.error.blame is blame
            assert message in rollout.error.message
    ids = ["good", *invalid]
    await client.acknowledge(ids)
    assert (await client.status()).rollouts == {}


async def test_candidates_that_cannot_run_are_failed_groups_of_the_draw(
    client: AsyncRolloutClient,
) -> None:
    invalid = invalid_groups()
    await client.create_sampler("s", SamplerSpec(groups_at_once=1))
    candidates = [*(bad for bad, _, _ in invalid.values()), scored("good", 0, 1)]
    await client.add_candidates("s", candidates)
    await client.open_draw("s", "d", DrawSpec(target=1))
    draw = await drawn(client)
    assert draw.state is DrawState.COMPLETE
    assert len(draw.dropped) == (await client.sampler("s")).failed == len(invalid)
    for dropped in draw.dropped:
        _, blame, message = invalid[dropped.candidate]
        assert dropped.reason == "failed"
        assert dropped.error is not None
        assert dropped.error.blame is blame
        assert message in dropped.error.message
