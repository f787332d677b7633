"""AsyncGRPOTrainer in real training on CPU, against a real service and engine."""

import math
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from packaging.version import Version
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

from prorl_service import local
from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.schemas import TERMINAL_STATES, Group, Limits, Rollout, RolloutState, Segment
from prorl_service.schemas.sampling import SamplerSpec
from tests.tokens.swapped_model import with_tokens_swapped
from tests.trl.training import ALL_FAIL, SERVICE_OPTIONS

if Version(trl.__version__) < Version("1.16"):
    pytest.skip("the CPU patches need TRL 1.16 or newer", allow_module_level=True)

from prorl_trl import async_groups, async_rollouts
from prorl_trl.async_rollouts import (
    ProRLRolloutWorker,
    ProRLWeightTransfer,
    RolloutWorkerFailed,
)
from prorl_trl.convert import groups_of
from tests.trl.async_training import (
    TWO_TURNS,
    make_async_trainer,
    make_config,
    make_worker,
    run_on_cpu,
)
from tests.trl.training import dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
    pytest.mark.processes,
]


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    run_on_cpu(monkeypatch)


def logged(trainer: Any, key: str) -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.02)


def failure_of(worker: ProRLRolloutWorker) -> str:
    """Returns the failure that the trainer will see."""
    while True:
        try:
            worker.check_health(300)
        except RolloutWorkerFailed as error:
            return str(error)
        time.sleep(0.02)


@contextmanager
def started(worker: ProRLRolloutWorker) -> Iterator[ProRLRolloutWorker]:
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def is_idle(service_url: str) -> bool:
    with RolloutClient(service_url) as client:
        return client.status().rollouts.keys() <= TERMINAL_STATES


@contextmanager
def own_service(service_url: str, tmp_path: Path, port: int) -> Iterator[local.LocalProcess]:
    """Runs a service on the engine of `service_url`, whose weights it leaves alone."""
    with RolloutClient(service_url) as client:
        [engine] = client.backends()
    log = tmp_path / "service.log"
    with local.service([engine.url], log=log, port=port, options=SERVICE_OPTIONS) as service:
        yield service


# --- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("peft_config", [None, LoraConfig(r=4, target_modules=["q_proj"])])
def test_the_engine_has_the_policy_of_the_last_step(
    service_url: str, policy: Path, tmp_path: Path, peft_config: LoraConfig | None
) -> None:
    config = make_config(tmp_path, max_steps=2)
    worker = make_worker(service_url, config)
    trainer = make_async_trainer(service_url, policy, config, worker, peft_config=peft_config)
    trainer.train()
    assert min(logged(trainer, "grad_norm")) > 0
    model = trainer.model.merge_and_unload() if peft_config else trainer.model
    model.save_pretrained(tmp_path / "trained")
    [group] = groups_of(
        dataset([None])["prompt"],
        n=1,
        name=f"after-{uuid.uuid4().hex}",
        agent=None,
        sampling=TWO_TURNS["sampling"],
        limits=Limits(max_response_tokens=40),
    )
    with RolloutClient(service_url) as client:
        assert client.status().policy_version == 3
        client.submit([group])
        [sampled] = client.wait(group.rollout_ids(), 60)
    assert sampled.trajectory is not None
    [segment] = sampled.trajectory.segments
    assert set(segment.policy_versions) == {3, -1}
    assert largest_difference(tmp_path / "trained", segment) < 1e-4
    assert largest_difference(policy, segment) > 1e-3


def largest_difference(trained: Path, segment: Segment) -> float:
    """Returns the largest difference of a logprob between engine and trainer."""
    model = AutoModelForCausalLM.from_pretrained(trained)
    ids = torch.tensor([segment.prompt_ids + segment.response_ids])
    with torch.no_grad():
        logprobs = model(ids).logits.log_softmax(-1)[0, len(segment.prompt_ids) - 1 : -1]
    ours = logprobs.gather(1, torch.tensor(segment.response_ids)[:, None])[:, 0]
    mask = torch.tensor(segment.loss_mask).bool()
    return float((ours - torch.tensor(segment.logprobs))[mask].abs().max())


def test_rollouts_stay_fresh_and_failed_ones_do_not_stop_training(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    observed: list[Rollout] = []
    config = make_config(tmp_path, max_steps=6)
    faults = [None, "easy", "agent", None]
    worker = make_worker(service_url, config, faults=faults, observe=observed.extend)
    trainer = make_async_trainer(service_url, policy, config, worker)
    trainer.train()
    versions = [one.oldest_policy_version for one in observed if one.state is RolloutState.DONE]
    assert versions[0] == 1
    assert max(version for version in versions if version is not None) > 2
    assert max(logged(trainer, "sample/staleness_max")) <= 2
    assert math.isclose(logged(trainer, "ratio")[0], 1, abs_tol=1e-4)
    assert logged(trainer, "kl")[0] < 1e-6
    assert sum(logged(trainer, "prorl/sampling/failed_total")) > 0
    assert sum(logged(trainer, "prorl/sampling/uninformative_total")) > 0
    assert min(logged(trainer, "reward_std")) > 0
    assert {one.state for one in observed} == {RolloutState.DONE, RolloutState.FAILED}
    assert is_idle(service_url)


def test_groups_are_drawn_from_a_sampler(service_url: str, policy: Path, tmp_path: Path) -> None:
    observed: list[Rollout] = []
    config = make_config(tmp_path)
    worker = make_worker(
        service_url,
        config,
        faults=[None, "agent", None, "easy"],
        dynamic_sampling=True,
        observe=observed.extend,
    )
    trainer = make_async_trainer(service_url, policy, config, worker)
    trainer.train()
    rewards = [one.reward for one in observed]
    groups = [rewards[start : start + 4] for start in range(0, len(rewards), 4)]
    assert len(groups) >= 8
    assert all(len(set(group)) > 1 for group in groups)
    assert {one.state for one in observed} == {RolloutState.DONE}
    assert max(logged(trainer, "sample/staleness_max")) <= 2
    assert sum(logged(trainer, "prorl/sampling/failed_total")) > 0
    assert sum(logged(trainer, "prorl/sampling/uninformative_total")) > 0
    assert is_idle(service_url)


def test_a_dead_service_ends_training_and_is_named(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    """The weights go to another service, so that the worker is the first to notice."""
    with own_service(service_url, tmp_path, local.free_port()) as service:

        def kill_once_rollouts_run() -> None:
            with RolloutClient(service.url) as client:
                until(lambda: client.status().rollouts.get(RolloutState.INIT, 0) > 0)
            service.kill()

        config = make_config(tmp_path)
        worker = make_worker(service.url, config, faults=["hang"], deadline_s=1)
        trainer = make_async_trainer(service_url, policy, config, worker)
        with ThreadPoolExecutor(1) as killer:
            killed = killer.submit(kill_once_rollouts_run)
            with pytest.raises(RolloutWorkerFailed, match=r"ConnectError(.|\n)*prorl serve"):
                trainer.train()
            killed.result()


# --- the worker alone ---------------------------------------------------------------------------


def test_samples_are_what_the_engine_sampled(service_url: str, tmp_path: Path) -> None:
    observed: list[Rollout] = []
    config = make_config(tmp_path, max_inflight_tasks=8)
    with started(make_worker(service_url, config, observe=observed.extend)) as worker:
        until(lambda: worker.rollout_buffer.qsize() >= 8)
    for one in observed[:8]:
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
    service_url: str, tmp_path: Path
) -> None:
    observed: list[Rollout] = []
    config = make_config(tmp_path, max_inflight_tasks=8)
    with started(make_worker(service_url, config, observe=observed.extend)) as worker:
        until(lambda: worker.rollout_buffer.qsize() == 8 and is_idle(service_url))
        for _ in range(4):
            worker.rollout_buffer.get_nowait()
        until(lambda: worker.rollout_buffer.qsize() == 8 and is_idle(service_url))
    assert len(observed) == 12


@pytest.mark.parametrize("dynamic_sampling", [False, True])
def test_stop_leaves_nothing_behind(
    service_url: str, tmp_path: Path, dynamic_sampling: bool
) -> None:
    config = make_config(tmp_path, max_inflight_tasks=8)
    worker = make_worker(service_url, config, faults=["hang"], dynamic_sampling=dynamic_sampling)
    with RolloutClient(service_url) as client:
        before = client.status().rollouts
        with started(worker):
            until(lambda: client.status().rollouts.get(RolloutState.INIT, 0) > 0)
        assert client.status().rollouts == before
    assert "trains once" in failure_of(worker)


@pytest.mark.parametrize("dynamic_sampling", [False, True])
def test_groups_are_submitted_again_after_a_restart_that_forgot_them(
    service_url: str, tmp_path: Path, dynamic_sampling: bool
) -> None:
    observed: list[Rollout] = []
    config = make_config(tmp_path, max_inflight_tasks=8)
    port = local.free_port()
    with ExitStack() as running:
        first = running.enter_context(own_service(service_url, tmp_path, port))
        worker = make_worker(
            first.url,
            config,
            faults=[None, "hang"],
            dynamic_sampling=dynamic_sampling,
            observe=observed.extend,
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
    alone: str, tmp_path: Path, dynamic_sampling: bool
) -> None:
    config = make_config(tmp_path, max_inflight_tasks=8)
    worker = make_worker(alone, config, faults=["agent"], dynamic_sampling=dynamic_sampling)
    with started(worker):
        message = failure_of(worker)
    assert "groups in a row" in message
    assert "take another agent" in message


@pytest.mark.logs(ALL_FAIL)
def test_transient_failures_end_training_at_the_deadline(
    alone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_rollouts, "RETRY_DELAY_S", 0.05)
    config = make_config(tmp_path, max_inflight_tasks=8)
    worker = make_worker(alone, config, faults=["sandbox"], deadline_s=1)
    with started(worker):
        message = failure_of(worker)
    assert "nothing to train on for 1 s" in message
    assert "no sandbox today" in message
    assert "raise `deadline_s`" in message


def test_weights_that_did_not_reach_the_engines_end_training(
    service_url: str, tmp_path: Path
) -> None:
    worker = make_worker(service_url, make_config(tmp_path, max_inflight_tasks=8))
    worker.update_model_version(1000)
    with started(worker):
        message = failure_of(worker)
    assert "begun after 1000 had been sent" in message
    assert "weight_transfer=ProRLWeightTransfer(url)" in message


def test_refused_tasks_end_training_with_the_reason(service_url: str, tmp_path: Path) -> None:
    config = make_config(tmp_path, max_inflight_tasks=8)
    data = dataset([None], agent="no-such-agent")
    with started(ProRLRolloutWorker(service_url, config, data)) as worker:
        assert "no-such-agent" in failure_of(worker)


def test_a_silent_worker_is_reported(service_url: str, tmp_path: Path) -> None:
    config = make_config(tmp_path, max_inflight_tasks=8)
    with (
        started(make_worker(service_url, config, faults=["hang"])) as worker,
        pytest.raises(RolloutWorkerFailed, match="GET /health"),
    ):
        worker.check_health(stale_after_s=0)


def test_an_unreachable_service_ends_training_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_rollouts, "FIRST_CONTACT_S", 0.2)
    transfer = ProRLWeightTransfer(f"http://127.0.0.1:{local.free_port()}")
    with pytest.raises(ServiceCallError, match=r"ConnectError(.|\n)*prorl serve"):
        transfer.init_weight_transfer()


# --- contract checks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.7}, "temperature 1, the trainer computes its logprobs at 0.7"),
        ({"token_budget": None}, "token_budget"),
        ({"num_generations": 1}, "take 2 or more"),
    ],
)
def test_settings_that_would_train_wrongly_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_worker("http://unused", make_config(tmp_path, **options))


def test_another_tokenizer_of_the_same_size_is_refused(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(with_tokens_swapped(policy, tmp_path / "other"))
    config = make_config(tmp_path, max_inflight_tasks=8)
    worker = make_worker(service_url, config, tokenizer=tokenizer)
    with pytest.raises(ValueError, match=r"tokenizer .*other.* is not that of"), started(worker):
        pass


def test_settings_that_are_not_sent_are_named(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"min_p=0\.1: not sent to the service"):
        make_worker("http://unused", make_config(tmp_path, min_p=0.1))


def test_a_config_of_another_trainer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="own AsyncGRPOConfig"):
        make_worker("http://unused", make_config(tmp_path)).start()


def test_an_unsupported_trl_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(tmp_path)
    monkeypatch.setattr("trl.__version__", "1.9.0")
    with pytest.raises(ImportError, match=r"async_rollouts supports .* but trl 1\.9\.0 is"):
        make_worker("http://unused", config)
    with pytest.raises(ImportError, match=r"trl 1\.9\.0 is"):
        ProRLWeightTransfer("http://unused")


def test_a_sampler_takes_its_settings_from_the_trainer() -> None:
    spec = async_groups.sampler_spec(SamplerSpec(groups_ahead=3), max_groups=7, max_staleness=4)
    assert (spec.groups_at_once, spec.groups_ahead, spec.max_staleness) == (7, 3, 3)


def test_an_empty_dataset_is_refused() -> None:
    def group_of(*_: Any) -> Group:
        raise AssertionError

    with pytest.raises(ValueError, match="dataset is empty"):
        next(async_groups.Candidates([], group_of, run_id="r"))
