"""The asynchronous worker without a trainer: its samples, its failures, and what it refuses."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from prorl_service import local, neighbours
from prorl_service.client import RolloutClient, ServiceCallError, policy
from prorl_service.neighbours import UntestedRelease
from prorl_service.schemas import Group, RolloutState
from prorl_service.schemas.sampling import SamplerSpec
from prorl_trl import async_groups, async_rollouts
from prorl_trl.async_rollouts import (
    ProRLRolloutWorker,
    ProRLWeightTransfer,
    RolloutWorkerFailed,
)
from tests.tokens.swapped_model import with_tokens_swapped
from tests.trl.async_training import (
    AsyncTrainings,
    failure_of,
    is_idle,
    own_service,
    started,
    until,
)
from tests.trl.training import ALL_FAIL, SERVICE_OPTIONS, dataset

pytestmark = pytest.mark.processes

# --- the worker alone ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service_url(engine_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields a service that no training has given weights: a worker waits for its own trainer's."""
    log = tmp_path_factory.mktemp("logs") / "service.log"
    with local.service([engine_url], log=log, options=SERVICE_OPTIONS) as service:
        yield service.url


@pytest.fixture
def train(service_url: str, policy: Path, tmp_path: Path) -> AsyncTrainings:
    return AsyncTrainings(service_url, policy, tmp_path)


@pytest.fixture
def idle(idle_url: str, policy: Path, tmp_path: Path) -> AsyncTrainings:
    return AsyncTrainings(idle_url, policy, tmp_path)


def test_samples_are_what_the_engine_sampled(train: AsyncTrainings) -> None:
    with started(train.worker()) as worker:
        until(lambda: worker.rollout_buffer.qsize() >= 8)
    for one in train.observed[:8]:
        sample = worker.rollout_buffer.get_nowait()
        assert one.trajectory is not None
        [segment] = one.trajectory.segments
        before = len(segment.prompt_ids)
        assert sample.input_ids.tolist() == segment.prompt_ids + segment.response_ids
        assert sample.completion_mask.tolist() == [0] * before + segment.loss_mask
        assert sample.old_log_probs.tolist() == [0.0] * before + segment.logprobs
        assert sample.model_version == one.oldest_policy_version
        assert sample.group_id == int(one.task_id.removeprefix("count-"))
        assert sample.prompt == [{"role": "user", "content": f"count to {sample.group_id}"}]


def test_samples_that_wait_for_the_trainer_hold_back_new_groups(
    train: AsyncTrainings, service_url: str
) -> None:
    with started(train.worker()) as worker:
        until(lambda: worker.rollout_buffer.qsize() == 8 and is_idle(service_url))
        for _ in range(4):
            worker.rollout_buffer.get_nowait()
        until(lambda: worker.rollout_buffer.qsize() == 8 and is_idle(service_url))
    assert len(train.observed) == 12


@pytest.mark.parametrize("dynamic_sampling", [False, True])
def test_stop_leaves_nothing_behind(
    train: AsyncTrainings, service_url: str, dynamic_sampling: bool
) -> None:
    worker = train.worker(faults=["hang"], dynamic_sampling=dynamic_sampling)
    with RolloutClient(service_url) as client:
        before = client.status().rollouts
        with started(worker):
            until(lambda: client.status().rollouts.get(RolloutState.INIT, 0) > 0)
        assert client.status().rollouts == before
    assert "trains once" in failure_of(worker)


@pytest.mark.parametrize("dynamic_sampling", [False, True])
def test_groups_are_submitted_again_after_a_restart_that_forgot_them(
    train: AsyncTrainings, service_url: str, tmp_path: Path, dynamic_sampling: bool
) -> None:
    observed = train.observed
    port = local.free_port()
    with ExitStack() as running:
        first = running.enter_context(own_service(service_url, tmp_path, port))
        worker = train.worker(
            url=first.url, faults=[None, "hang"], dynamic_sampling=dynamic_sampling
        )
        running.enter_context(started(worker))
        with RolloutClient(first.url) as client:
            until(lambda: client.status().rollouts.get(RolloutState.INIT, 0) >= 4)
            until(lambda: bool(observed))
        first.kill()
        running.enter_context(own_service(service_url, tmp_path, port))
        before = len(observed)
        worker.rollout_buffer.queue.clear()
        worker.rollout_buffer.taken.set()
        until(lambda: len(observed) > before)
        worker.check_health(300)


@pytest.mark.logs(ALL_FAIL)
@pytest.mark.parametrize("dynamic_sampling", [False, True])
def test_permanent_failures_end_training(
    train: AsyncTrainings, other_url: str, dynamic_sampling: bool
) -> None:
    with started(
        train.worker(url=other_url, faults=["agent"], dynamic_sampling=dynamic_sampling)
    ) as worker:
        message = failure_of(worker)
    assert "groups in a row" in message
    assert "take another agent" in message


@pytest.mark.logs(ALL_FAIL)
def test_transient_failures_end_training_at_the_deadline(
    train: AsyncTrainings, other_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_rollouts, "RETRY_DELAY_S", 0.05)
    with started(train.worker(url=other_url, faults=["sandbox"], deadline_s=1)) as worker:
        message = failure_of(worker)
    assert "nothing to train on for 1 s" in message
    assert "no sandbox today" in message
    assert "raise `deadline_s`" in message


def test_weights_that_did_not_reach_the_engines_end_training(train: AsyncTrainings) -> None:
    worker = train.worker()
    worker.update_model_version(1000)
    with started(worker):
        message = failure_of(worker)
    assert "begun after 1000 had been sent" in message
    assert "weight_transfer=ProRLWeightTransfer(url)" in message


def test_refused_tasks_end_training_with_the_reason(train: AsyncTrainings) -> None:
    config = train.config(max_inflight_tasks=8)
    data = dataset([None], agent="no-such-agent").to_iterable_dataset()
    with started(ProRLRolloutWorker(train.url, config, data)) as worker:
        assert "no-such-agent" in failure_of(worker)


def test_a_silent_worker_is_reported(train: AsyncTrainings) -> None:
    with (
        started(train.worker(faults=["hang"])) as worker,
        pytest.raises(RolloutWorkerFailed, match="GET /health"),
    ):
        worker.check_health(stale_after_s=0)


def test_an_unreachable_service_ends_training_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FIRST_CONTACT_S", 0.2)
    transfer = ProRLWeightTransfer(f"http://127.0.0.1:{local.free_port()}")
    with pytest.raises(ServiceCallError, match=r"ConnectError(.|\n)*prorl serve"):
        transfer.init_weight_transfer()


# --- contract checks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token_budget": None}, "token_budget"),
        ({"num_generations": 1}, "take 2 or more"),
        ({"min_p": 0.1}, r"AsyncGRPOConfig has min_p=0\.1: .*remove it"),
    ],
)
def test_settings_that_would_train_wrongly_are_refused(
    idle: AsyncTrainings, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        idle.worker(idle.config(**options))


def test_another_tokenizer_of_the_same_size_is_refused(
    train: AsyncTrainings, policy: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(with_tokens_swapped(policy, tmp_path / "other"))
    worker = train.worker(tokenizer=tokenizer)
    with pytest.raises(ValueError, match=r"tokenizer .*other.* is not that of"), started(worker):
        pass


def test_a_config_of_another_trainer_is_refused(idle: AsyncTrainings) -> None:
    with pytest.raises(ValueError, match="own AsyncGRPOConfig"):
        idle.worker(idle.config()).start()


def test_an_unsupported_trl_is_named(idle: AsyncTrainings, monkeypatch: pytest.MonkeyPatch) -> None:
    config = idle.config()
    monkeypatch.setattr(neighbours, "version", lambda package: "1.9.0")
    with pytest.raises(UntestedRelease, match=r"async_rollouts supports .* but trl 1\.9\.0 is"):
        idle.worker(config)
    with pytest.raises(UntestedRelease, match=r"trl 1\.9\.0 is"):
        ProRLWeightTransfer(idle.url)


def test_a_sampler_takes_its_settings_from_the_trainer() -> None:
    spec = async_groups.sampler_spec(SamplerSpec(groups_ahead=3), max_groups=7, max_staleness=4)
    assert (spec.groups_at_once, spec.groups_ahead, spec.max_staleness) == (7, 3, 3)


def test_an_empty_dataset_is_refused() -> None:
    def group_of(*_: Any) -> Group:
        raise AssertionError

    with pytest.raises(ValueError, match="dataset is empty"):
        next(async_groups.PromptGroups([], group_of, run_id="r"))
