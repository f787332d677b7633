"""`ProRLRollout` in real GRPO training on CPU, against a real service and engine."""

import math
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOTrainer

from prorl_service import local
from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.schemas import Rollout, RolloutState, Sampling
from prorl_trl import ProRLRollout, RolloutsFailed, checks, rollout
from tests.trl.training import SERVICE_OPTIONS, make_trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*rollout_func.*experimental:UserWarning",
    "ignore:.*gradient_checkpointing.*:FutureWarning",
)

TWO_TURNS: dict[str, Any] = {
    "overlong": "keep",
    "sampling": Sampling(max_tokens_per_turn=8),
    "deadline_s": 60,
}


def logged(trainer: GRPOTrainer, key: str) -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


# --- what training sees -------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["auto", "directory"])
def test_engine_and_trainer_agree_on_every_token_after_every_update(
    service_url: str, policy: Path, tmp_path: Path, weights: str
) -> None:
    target = tmp_path / "weights" if weights == "directory" else weights
    observed: list[Rollout] = []
    rollouts = ProRLRollout(service_url, weights=target, observe=observed.extend, **TWO_TURNS)
    trainer = make_trainer(rollouts, policy, tmp_path, options={"num_generations_eval": 2})
    trainer.train()
    assert len({rollout.rollout_id for rollout in observed}) == 16
    trainer.evaluate()
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-4
    assert max(logged(trainer, "eval_sampling/sampling_logp_difference/max")) < 1e-4
    assert min(logged(trainer, "grad_norm")) > 0
    assert logged(trainer, "prorl/turns") == [2, 2]
    assert logged(trainer, "prorl/failed") == [0, 0]
    assert logged(trainer, "prorl/policy_lag") == [0, 0]
    assert all(0 <= reward <= 1 for reward in logged(trainer, "rewards/prorl_reward/mean"))
    with RolloutClient(service_url) as client:
        assert client.status().policy_version == 2


def test_lora_adapters_are_merged_into_what_the_engine_gets(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    rollouts = ProRLRollout(service_url, **TWO_TURNS)
    trainer = make_trainer(rollouts, policy, tmp_path, peft_config=config)
    trainer.train()
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-4


def test_without_correction_trl_measures_nothing(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    rollouts = ProRLRollout(service_url, importance_sampling="off", **TWO_TURNS)
    trainer = make_trainer(rollouts, policy, tmp_path)
    trainer.train()
    assert logged(trainer, "prorl/policy_lag") == [0, 0]
    assert logged(trainer, "sampling/sampling_logp_difference/max") == []


def test_weights_can_be_left_alone(service_url: str, policy: Path, tmp_path: Path) -> None:
    with RolloutClient(service_url) as client:
        before = client.status().policy_version
        rollouts = ProRLRollout(service_url, weights="none", **TWO_TURNS)
        trainer = make_trainer(rollouts, policy, tmp_path)
        trainer.train()
        assert client.status().policy_version == before
    assert logged(trainer, "prorl/policy_lag") == []


def test_trl_updates_its_own_vllm_server(service_url: str, policy: Path, tmp_path: Path) -> None:
    """`use_vllm=True, vllm_mode="server"`, with an engine that only counts."""

    class VllmGeneration:
        updates = 0

        def sync_weights(self) -> None:
            self.updates += 1

    rollouts = ProRLRollout(service_url, **TWO_TURNS)
    trainer = make_trainer(rollouts, policy, tmp_path, options={"vllm_mode": "server"})
    trainer.use_vllm, trainer.vllm_generation = True, VllmGeneration()
    trainer._last_loaded_step = -1
    trainer.train()
    assert trainer.vllm_generation.updates == 2
    assert logged(trainer, "prorl/policy_lag") == []
    assert len(logged(trainer, "sampling/sampling_logp_difference/max")) == 2


def test_completion_length_limits_rollouts_and_cut_off_ones_are_not_trained_on(
    service_url: str, policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rollouts = ProRLRollout(service_url, sampling=Sampling(max_tokens_per_turn=4))
    options = {"max_steps": 1, "max_completion_length": 6}
    trainer = make_trainer(rollouts, policy, tmp_path, options=options)
    trainer.train()
    assert logged(trainer, "prorl/overlong") == [1]
    assert logged(trainer, "grad_norm") == [0]
    assert not math.isnan(logged(trainer, "reward")[0])
    assert "nothing to learn from" in caplog.text


# --- failures -----------------------------------------------------------------------------------


def test_training_goes_on_after_a_step_in_which_everything_failed(
    service_url: str,
    policy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of the second step's two tasks one hangs until the deadline."""
    monkeypatch.setattr(rollout, "RETRY_DELAY_S", 1.5)
    rollouts = ProRLRollout(service_url, **TWO_TURNS | {"deadline_s": 2})
    faults = ["sandbox", "sandbox", "hang", None]
    trainer = make_trainer(rollouts, policy, tmp_path, faults=faults)
    trainer.train()
    assert logged(trainer, "prorl/failed") == [1, 0.5]
    assert logged(trainer, "prorl/failed/sandbox") == [1, 0]
    assert logged(trainer, "prorl/failed/service") == [0, 0.5]
    lost, partial = logged(trainer, "grad_norm")
    assert (lost, partial > 0) == (0, True)
    assert "8 x SandboxError (blame: sandbox): no sandbox today" in caplog.text
    assert "4 x NotFinished (blame: service): the rollout is cancelled" in caplog.text
    with RolloutClient(service_url) as client:
        assert client.status().rollouts.get(RolloutState.INIT, 0) == 0


def test_training_survives_an_engine_that_dies_and_comes_back(policy: Path, tmp_path: Path) -> None:
    """The engine dies before the second update, and its successor knows the first weights only."""
    port = local.free_port()

    def start_engine() -> AbstractContextManager[local.LocalProcess]:
        return local.engine(policy, log=tmp_path / "engine.log", port=port)

    with ExitStack() as running:
        first = running.enter_context(start_engine())
        service = local.service([first.url], log=tmp_path / "service.log", options=SERVICE_OPTIONS)
        rollouts = ProRLRollout(running.enter_context(service).url, **TWO_TURNS)
        starter = running.enter_context(ThreadPoolExecutor(1))

        class ReplaceEngine(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step == 1:
                    first.kill()
                    starter.submit(running.enter_context, start_engine())

        trainer = make_trainer(rollouts, policy, tmp_path, callbacks=[ReplaceEngine()])
        trainer.train()
    assert logged(trainer, "prorl/failed") == [0, 0]
    assert logged(trainer, "prorl/policy_lag") == [0, 0]
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-4


def test_training_survives_a_service_that_is_restarted(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is killed in the second step, with one of eight rollouts received."""
    monkeypatch.setattr(rollout, "RETRY_DELAY_S", 0)
    port = local.free_port()
    observed: list[Rollout] = []
    follow = RolloutClient.stream
    streams = 0

    with ExitStack() as running:
        engine = running.enter_context(local.engine(policy, log=tmp_path / "engine.log"))

        def start_service() -> local.LocalProcess:
            options = [*SERVICE_OPTIONS, "--run-workers", "1"]
            log = tmp_path / "service.log"
            service = local.service([engine.url], log=log, port=port, options=options)
            return running.enter_context(service)

        first = start_service()

        def stream(*args: Any) -> Iterator[Rollout]:
            nonlocal streams
            streams += 1
            for number, received in enumerate(follow(*args)):
                if (streams, number) == (2, 0):
                    first.kill()
                    start_service()
                yield received

        monkeypatch.setattr(RolloutClient, "stream", stream)
        rollouts = ProRLRollout(first.url, observe=observed.extend, **TWO_TURNS)
        trainer = make_trainer(rollouts, policy, tmp_path)
        trainer.train()
        with RolloutClient(first.url) as client:
            status = client.status()
    assert "no longer knows the rollouts" in caplog.text
    assert len({one.rollout_id for one in observed}) == len(observed) == 16
    assert status.policy_version == 1
    assert status.rollouts.keys() <= {RolloutState.DONE, RolloutState.CANCELLED}
    assert logged(trainer, "prorl/failed") == [0, 0]
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-4


def test_training_does_not_wait_for_a_service_that_forgets_for_ever(
    service_url: str, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "RETRY_DELAY_S", 0.1)
    follow = RolloutClient.stream

    def stream(client: RolloutClient, _: Any, timeout_s: float) -> Iterator[Rollout]:
        return follow(client, ["not-here.0"], timeout_s)

    monkeypatch.setattr(RolloutClient, "stream", stream)
    rollouts = ProRLRollout(service_url, **TWO_TURNS | {"deadline_s": 1})
    trainer = make_trainer(rollouts, policy, tmp_path)
    with pytest.raises(RolloutsFailed, match="no longer knows"):
        trainer.train()


def test_training_does_not_go_on_without_rollouts_for_ever(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    rollouts = ProRLRollout(service_url, **TWO_TURNS | {"deadline_s": 1})
    options = {"max_steps": rollout.MAX_LOST_CALLS}
    trainer = make_trainer(rollouts, policy, tmp_path, faults=["sandbox"] * 6, options=options)
    with pytest.raises(RolloutsFailed, match="no sandbox today"):
        trainer.train()
    assert len(logged(trainer, "prorl/failed")) == rollout.MAX_LOST_CALLS - 1


def test_interrupt_cancels_what_is_running(service_url: str, policy: Path, tmp_path: Path) -> None:
    def interrupt_once_rollouts_run() -> None:
        with RolloutClient(service_url) as client:
            for _ in range(200):
                if client.status().rollouts.get(RolloutState.INIT):
                    break
                time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    trainer = make_trainer(
        ProRLRollout(service_url, **TWO_TURNS), policy, tmp_path, faults=["hang", "hang"]
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells may ignore it
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(interrupt_once_rollouts_run)
            with pytest.raises(KeyboardInterrupt):
                trainer.train()
    finally:
        signal.signal(signal.SIGINT, before)
    with RolloutClient(service_url) as client:
        assert not client.status().rollouts.get(RolloutState.INIT)


def test_any_error_cancels_what_is_running(
    service_url: str, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stream(*_: Any) -> Iterator[Rollout]:
        raise MemoryError

    monkeypatch.setattr(RolloutClient, "stream", stream)
    rollouts = ProRLRollout(service_url, **TWO_TURNS)
    trainer = make_trainer(rollouts, policy, tmp_path, faults=["hang", "hang"])
    with pytest.raises(MemoryError):
        trainer.train()
    with RolloutClient(service_url) as client:
        states = client.status().rollouts
    assert not states.keys() & {RolloutState.QUEUED, RolloutState.INIT}


@pytest.mark.parametrize(
    ("faults", "on_failure"), [(["agent", "agent"], "unscorable"), (["agent", None], "raise")]
)
def test_failures_that_cannot_pass_end_training(
    service_url: str, policy: Path, tmp_path: Path, faults: list[str | None], on_failure: Any
) -> None:
    rollouts = ProRLRollout(service_url, on_failure=on_failure, **TWO_TURNS)
    trainer = make_trainer(rollouts, policy, tmp_path, faults=faults)
    with pytest.raises(RolloutsFailed, match=r"this agent always fails\n +take another agent"):
        trainer.train()


def test_refused_task_ends_training_with_the_reason(
    service_url: str, policy: Path, tmp_path: Path
) -> None:
    rollouts = ProRLRollout(service_url, **TWO_TURNS)
    trainer = make_trainer(rollouts, policy, tmp_path, agent="no-such-agent")
    with pytest.raises(ServiceCallError, match="no-such-agent"):
        trainer.train()


def test_unreachable_service_ends_training_at_once(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "FIRST_CONTACT_S", 0.2)
    url = f"http://127.0.0.1:{local.free_port()}"
    trainer = make_trainer(ProRLRollout(url), policy, tmp_path)
    with pytest.raises(ServiceCallError, match=r"ConnectError(.|\n)*prorl serve"):
        trainer.train()


# --- contract checks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "options", "message"),
    [
        ({"tools": [print]}, {}, "remove `tools`"),
        ({"use_vllm": True, "vllm_mode": "colocate"}, {}, "vllm_mode='server'"),
        ({}, {"temperature": 0.7}, "temperature 1, the trainer computes its logprobs at 0.7"),
    ],
)
def test_trainers_that_would_train_wrongly_are_refused(
    policy: Path,
    tmp_path: Path,
    attributes: dict[str, Any],
    options: dict[str, Any],
    message: str,
) -> None:
    trainer = make_trainer(ProRLRollout("http://unused"), policy, tmp_path, options=options)
    for name, value in attributes.items():
        setattr(trainer, name, value)
    with pytest.raises(ValueError, match=message):
        checks.check_trainer(trainer, Sampling())


@pytest.mark.parametrize(
    ("options", "sampling", "message"),
    [
        ({"vllm_importance_sampling_mode": "sequence_mask"}, Sampling(), "token_truncate"),
        ({"mask_truncated_completions": True}, Sampling(), "overlong='mask'"),
        ({"top_p": 0.9}, Sampling(), r"top_p=0\.9: not sent to the service"),
        ({}, Sampling(top_k=5), "bias importance ratios"),
    ],
)
def test_settings_rarely_meant_give_a_warning(
    policy: Path, tmp_path: Path, options: dict[str, Any], sampling: Sampling, message: str
) -> None:
    trainer = make_trainer(ProRLRollout("http://unused"), policy, tmp_path, options=options)
    with pytest.warns(UserWarning, match=message):
        checks.warn_about(trainer, sampling, deadline_s=1800)


def test_hooks_that_trl_dropped_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def _generate(self: GRPOTrainer, prompts: list[Any]) -> None:
        self.rollout_func(prompts, self)

    monkeypatch.setattr(GRPOTrainer, "_generate", _generate)
    with pytest.raises(RuntimeError, match=r"no longer reads \['_last_loaded_step'"):
        checks.check_hooks()


def test_unsupported_trl_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trl.__version__", "1.15.0")
    with pytest.raises(ImportError, match=r"trl 1\.15\.0 is installed"):
        ProRLRollout("http://unused")


def test_misspelt_weights_option_is_refused() -> None:
    with pytest.raises(ValueError, match="'strem'"):
        ProRLRollout("http://unused", weights="strem")
