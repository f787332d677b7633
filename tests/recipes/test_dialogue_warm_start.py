"""The warm start of the dialogues about orders, sampled by a real engine in a real service."""

from dataclasses import replace

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.schemas import Group, Rollout
from recipes.dialogue.demonstrations import WARM_START, demonstrations, warm_started
from recipes.dialogue.tasks import CONTEXT, LIMITS, Instance, instances
from recipes.dialogue.user import MODEL, customer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

SHORT = replace(WARM_START, steps=200)
TRIED = 60
WAIT_S = 600


def test_demonstrations_are_mostly_wrong_and_never_held_out() -> None:
    examples = demonstrations(2000, seed=0)
    right = [one for one in examples if one.act is one.instance.right]
    assert 0.15 < len(right) / len(examples) < 0.25
    heldout = {one.number for one in instances("heldout", 180, seed=0)}
    assert not heldout & {one.instance.number for one in examples}


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> list[Rollout]:
    """Rollouts of the warm-started policy, one for each instance held out."""
    directory = tmp_path_factory.mktemp("dialogue")
    model = warm_started(directory, SHORT)
    tried = instances("heldout", TRIED, seed=0)
    groups = [Group(group_id=one.name, task=one.task(), limits=LIMITS) for one in tried]
    of_engine = ["--max-model-len", str(CONTEXT)]
    with (
        customer().in_thread() as user,
        local.engine(model, log=directory / "engine.log", options=of_engine) as engine,
        local.service([engine.url], log=directory / "service.log", options=_options(user.url)) as s,
        RolloutClient(s.url) as client,
    ):
        client.submit(groups)
        return client.wait([one.rollout_id(0) for one in groups], timeout_s=WAIT_S)


def _options(user_url: str) -> list[str]:
    return ["--sandbox", "process", "--user-url", f"{user_url}/v1", "--user-model", MODEL]


def test_the_policy_asks_and_looks_up_but_seldom_acts_rightly(rollouts: list[Rollout]) -> None:
    tried: list[Instance] = instances("heldout", TRIED, seed=0)
    assert [one.error for one in rollouts] == [None] * TRIED
    by_task = {one.task_id: one for one in rollouts}
    looked_up = sum(_looked_up(by_task[one.name], one) for one in tried)
    right = sum(one.reward == 1.0 for one in rollouts)
    assert looked_up > 0.5 * TRIED
    assert 0.05 * TRIED < right < 0.6 * TRIED


def _looked_up(rollout: Rollout, one: Instance) -> bool:
    """Returns whether the rollout asked for the order, and looked up the one it was told."""
    assert rollout.trajectory is not None
    first, *others = rollout.trajectory.turns
    calls = [call for turn in others for call in turn.tool_calls]
    return first.text == "Which order?" and any(call.output == one.shown for call in calls)
