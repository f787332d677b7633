"""Training on Tinker's API against SkyRL's server: exact logprobs, exact versions, ownership."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tinker import types

from prorl_service.client import RolloutClient
from prorl_service.client.off_policy import PolicyDiffers
from prorl_service.errors import InvalidRequest, PolicyTaken
from prorl_service.schemas import Sampling
from prorl_service.schemas.sampling import SamplerSpec
from tests.tinker.training import EXACT, new_client, rollouts, tasks, update, versions

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def client(service_client: Any, policy: Path) -> Any:
    return new_client(service_client, policy)


def test_three_steps_train_on_what_the_newest_weights_sampled(
    service_url: str, client: Any
) -> None:
    with rollouts(service_url, client) as own:
        for number in range(1, 4):
            step = own.step()
            assert all(one.error is None for group in step.groups for one in group)
            assert versions(step) == {number}
            values = update(own, client, step)
            assert values["prorl/off_policy_max"] <= EXACT
            assert values["prorl/failed"] == values["prorl/policy_lag"] == 0
            assert len(step.data) == values["prorl/data"] > 0
        with RolloutClient(service_url) as reader:
            shown = reader.training().model_dump_json()
    assert "prorl/off_policy" in shown
    with RolloutClient(service_url) as reader:
        assert reader.backends() == []


def test_all_segments_of_a_rollout_are_trained_on(service_url: str, client: Any) -> None:
    with rollouts(service_url, client, tasks=tasks(agent="forgetful")) as own:
        step = own.step()
        assert update(own, client, step)["prorl/off_policy_max"] <= EXACT
    done = [one for group in step.groups for one in group if one.trajectory]
    assert all(len(one.trajectory.segments) == 2 for one in done if one.trajectory)
    assert len(step.data) == 2 * len(done)


def test_groups_are_drawn_and_carried_over_with_the_versions_that_sampled_them(
    service_url: str, client: Any
) -> None:
    """Half of the tasks teach nothing."""
    mixed = [*tasks(4), *tasks(4, fault="easy")]
    spec = SamplerSpec(oversubscription=3.0)
    with rollouts(service_url, client, tasks=mixed, dynamic_sampling=spec) as own:
        for number in range(1, 4):
            step = own.step()
            assert versions(step) <= {number - 1, number}
            assert len(step.groups) == 2
            values = update(own, client, step)
            assert values.get("prorl/off_policy_max", 0.0) <= EXACT
    assert 0 < values["prorl/sampling/informative_share"] <= 1


def test_a_second_training_is_refused_by_name(service_url: str, client: Any) -> None:
    with (
        rollouts(service_url, client),
        RolloutClient(service_url) as reader,
    ):
        before = reader.backends()
        from prorl_service.client import policy

        held = policy._held.pop(service_url)  # as in another process
        with pytest.raises(PolicyTaken, match="take_over"):
            rollouts(service_url, client).__enter__()
        policy._held[service_url] = held
        assert reader.backends() == before


def test_weights_that_changed_meanwhile_are_noticed(
    service_url: str, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with rollouts(service_url, client) as own, caplog.at_level(logging.WARNING):
        step = own.step()
        client.forward_backward(step.data, "importance_sampling").result()
        client.optim_step(types.AdamParams(learning_rate=0.1)).result()
        try:
            update(own, client, step, rate=0.0)
            found = caplog.text
        except PolicyDiffers as error:
            found = str(error)
    assert "step 1: engine and trainer differ by" in found
    assert "nats a token on average" in found


def test_data_of_others_end_training(service_url: str, client: Any) -> None:
    with rollouts(service_url, client) as own:
        step = own.step()
        copies = [replace(one) for one in step.data]
        future = client.forward_backward(copies, "importance_sampling")
        with pytest.raises(PolicyDiffers, match="none of the step's"):
            own.check(copies, future)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": Sampling(temperature=0.7)}, "Tinker computes logprobs at 1"),
        ({"group_size": 1}, "nothing to compare with"),
    ],
)
def test_options_that_would_train_wrongly_are_refused(
    service_url: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        rollouts(service_url, None, **options)
