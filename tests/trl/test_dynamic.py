"""Dynamic sampling in real GRPO training: every step trains on informative groups only."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from prorl_service.client import RolloutClient, failures
from prorl_service.client.datasets import rows_without_end
from prorl_service.client.sampling import AllGroupsFail
from prorl_service.client.trainable import SoftPunishment
from prorl_service.schemas import TERMINAL_STATES, Replay, RolloutState, Sampling
from prorl_service.schemas.sampling import SamplerSpec, SamplerStatus
from prorl_trl import checks
from tests.trl.conftest import RestartedService
from tests.trl.letters import BEGUN
from tests.trl.training import ALL_FAIL, Trainings, dataset, logged, worst

pytestmark = pytest.mark.processes

MIX = ["easy", "easy", None, "easy", "sandbox", None, "easy", None]
STEPS: dict[str, Any] = {"max_steps": 4, "num_train_epochs": 4}


def test_no_group_without_variance_is_trained_on(train: Trainings, service_url: str) -> None:
    trainer = train(dynamic_sampling=True, faults=MIX, options=STEPS)
    assert logged(trainer, "frac_reward_zero_std") == [0] * 4
    assert logged(trainer, "prorl/failed") == [0] * 4
    assert sum(logged(trainer, "prorl/sampling/uninformative")) > 0
    lags = logged(trainer, "prorl/policy_lag")
    assert set(lags) <= {0, 1}
    for lag, difference in zip(
        lags, logged(trainer, "sampling/sampling_logp_difference/max"), strict=True
    ):
        assert lag == 1 or difference < 1e-4
    assert all(0 < share <= 1 for share in logged(trainer, "prorl/sampling/informative_share"))
    unfiltered = logged(trainer, "prorl/sampling/unfiltered_reward")
    trained_on = logged(trainer, "rewards/prorl_reward/mean")
    assert sum(unfiltered) > sum(trained_on)  # easy tasks have the highest reward
    assert len({one.rollout_id for one in train.observed}) == 4 * 8
    assert not {"count-0", "count-1", "count-4"} & {one.task_id for one in train.observed}
    with RolloutClient(service_url) as client:  # nothing keeps running after training
        assert set(client.status().rollouts) <= TERMINAL_STATES


def test_groups_without_variance_are_trained_on_by_default(train: Trainings) -> None:
    trainer = train(faults=MIX, options=STEPS)
    assert max(logged(trainer, "frac_reward_zero_std")) > 0


def test_only_the_newest_policy_samples_without_staleness(train: Trainings) -> None:
    spec = SamplerSpec(max_staleness=0)
    trainer = train(dynamic_sampling=spec, faults=MIX, options=STEPS)
    assert logged(trainer, "prorl/policy_lag") == [0] * 4
    assert worst(trainer) < 1e-4


def test_a_head_start_is_not_trained_on(train: Trainings) -> None:
    """The policy fails all of its groups but those that begin with a turn of the solution."""
    spec = SamplerSpec(head_start=True, max_staleness=0, defer_after=None)
    trainer = train(agent="begun", dynamic_sampling=spec, options={"max_steps": 2})
    assert worst(trainer) < 1e-4
    assert logged(trainer, "frac_reward_zero_std") == [0] * 2
    for rollout in train.observed:
        assert rollout.replay == Replay(turns=1)
        assert rollout.trajectory is not None
        [segment], [begun, last] = rollout.trajectory.segments, rollout.trajectory.turns
        assert (begun.text, begun.is_replayed) == (BEGUN, True)
        assert sum(segment.loss_mask) == sum(segment.loss_mask[last.start : last.stop]) > 0


def test_evaluation_samples_every_task(train: Trainings) -> None:
    options = {"num_generations_eval": 2, "max_steps": 1}
    trainer = train(dynamic_sampling=True, faults=MIX, options=options)
    train.observed.clear()
    trainer.evaluate()
    assert {one.task_id for one in train.observed} == {"count-0", "count-1"}


def test_a_deadline_leaves_the_missing_groups_without_weight(train: Trainings) -> None:
    trainer = train(
        dynamic_sampling=SamplerSpec(groups_at_once=2),
        deadline_s=3,
        faults=[None, "hang", "hang"],
        options={"max_steps": 1},
    )
    assert logged(trainer, "prorl/failed") == [0.5]
    assert logged(trainer, "grad_norm")[0] > 0


@pytest.mark.logs(ALL_FAIL)
def test_training_ends_with_the_reason_when_all_groups_fail(
    train: Trainings, service_url: str
) -> None:
    trainer = train.trainer(dynamic_sampling=True, faults=["agent"] * 8)
    with pytest.raises(AllGroupsFail, match="this agent always fails"):
        trainer.train()
    with RolloutClient(service_url) as client:
        states = client.status().rollouts
    assert not states.keys() & {RolloutState.QUEUED, RolloutState.INIT}


def test_long_rollouts_are_punished_for_their_sampled_tokens(train: Trainings) -> None:
    punishment = SoftPunishment(max_tokens=16, buffer_tokens=16)
    trainer = train(overlong=punishment, options={"max_steps": 1})
    rewards = [
        one.reward - sum(one.trajectory.segments[0].loss_mask) / 16
        for one in train.observed
        if one.reward is not None and one.trajectory is not None
    ]
    assert logged(trainer, "rewards/prorl_reward/mean") == [pytest.approx(sum(rewards) / 8)]


@pytest.mark.parametrize("has_journal", [True, False])
def test_training_survives_a_restart_of_the_service(
    train: Trainings,
    start_service: Callable[..., RestartedService],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_journal: bool,
) -> None:
    """The service is killed while a draw is open."""
    monkeypatch.setattr(failures, "RETRY_DELAY_S", 0)
    polls, follow = count(), RolloutClient.sampler
    journal = ["--journal", str(tmp_path / "journal.sqlite"), "--resume"] if has_journal else []
    service = start_service(*journal, "--run-workers", "2")

    def poll(*args: Any) -> SamplerStatus:
        if next(polls) == 3:
            service.restart()
        return follow(*args)

    monkeypatch.setattr(RolloutClient, "sampler", poll)
    trainer = train(url=service.url, dynamic_sampling=True, faults=MIX, options=STEPS)
    assert next(polls) > 3
    assert logged(trainer, "frac_reward_zero_std") == [0] * 4
    assert logged(trainer, "prorl/failed") == [0] * 4


def test_rewards_of_other_columns_give_a_warning(train: Trainings, idle_url: str) -> None:
    def own_reward(completions: list[Any], **_: Any) -> list[float]:
        return [0.0] * len(completions)

    trainer = train.trainer(url=idle_url, dynamic_sampling=True, sampling=Sampling())
    own = trainer.rollout_func.reward_funcs
    checks.warn_about_rewards(trainer, own)
    trainer.reward_funcs.append(own_reward)
    with pytest.warns(UserWarning, match="do not belong to the completions"):
        checks.warn_about_rewards(trainer, own)


def test_prompts_come_in_another_order_in_each_round() -> None:
    data = dataset([None] * 20)
    rows = rows_without_end(data, seed=0)
    rounds = [[next(rows)["prompt"][0]["content"] for _ in range(20)] for _ in range(2)]
    assert rounds[0] != rounds[1]
    assert sorted(rounds[0]) == sorted(rounds[1])
