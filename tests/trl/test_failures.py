"""Training through failures of rollouts, engines and services."""

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

from prorl_service import local
from prorl_service.client import RolloutClient, ServiceCallError, failures
from prorl_service.schemas import BackendState, Rollout, RolloutState
from prorl_trl import ProRLRollout, RolloutsFailed, rollout
from tests import real_engines
from tests.tokens.swapped_model import with_tokens_swapped
from tests.trl.conftest import RestartedService
from tests.trl.status_service import status_service
from tests.trl.training import (
    ALL_FAIL,
    SERVICE_OPTIONS,
    Trainings,
    logged,
    make_trainer,
    worst,
)

pytestmark = pytest.mark.processes


@pytest.mark.logs(ALL_FAIL)
def test_training_continues_after_a_step_in_which_everything_failed(
    train_there: Trainings,
    other_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One of the second step's two tasks hangs until the deadline."""
    monkeypatch.setattr(failures, "RETRY_DELAY_S", 1.5)
    trainer = train_there(deadline_s=2, faults=["sandbox", "sandbox", "hang", None])
    assert logged(trainer, "prorl/failed") == [1, 0.5]
    assert logged(trainer, "prorl/failed/sandbox") == [1, 0]
    assert logged(trainer, "prorl/failed/service") == [0, 0.5]
    lost, partial = logged(trainer, "grad_norm")
    assert (lost, partial > 0) == (0, True)
    assert "8 x SandboxError (blame: sandbox): no sandbox today" in caplog.text
    assert "4 x NotFinished (blame: service): the rollout is cancelled" in caplog.text
    with RolloutClient(other_url) as client:
        assert client.status().rollouts.get(RolloutState.INIT, 0) == 0


def test_a_dead_engine_is_not_taken_for_a_short_deadline(
    train: Trainings, policy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as running:
        engine = running.enter_context(local.engine(policy, log=tmp_path / "engine.log"))
        log, options = tmp_path / "service.log", SERVICE_OPTIONS
        service = running.enter_context(local.service([engine.url], log=log, options=options))
        with RolloutClient(service.url) as client:
            engine.kill()
            while client.backends()[0].state is not BackendState.DOWN:
                time.sleep(0.1)
        trainer = train(url=service.url, weights="none", deadline_s=3, options={"max_steps": 1})
    assert logged(trainer, "prorl/failed/backend") == [1]
    assert "8 x BackendUnavailable (blame: backend): no engine serves" in caplog.text
    assert "deadline_s" not in caplog.text


@pytest.mark.parametrize("kind", real_engines.ENGINES)
def test_training_survives_an_engine_that_dies_and_comes_back(
    train: Trainings, policy: Path, tmp_path: Path, kind: str
) -> None:
    """The engine dies before the second update, and its successor has only the first weights."""
    port = local.free_port()

    def start_engine() -> AbstractContextManager[local.LocalProcess]:
        return real_engines.engine(kind, policy, log=tmp_path / "engine.log", port=port)

    with ExitStack() as running:
        first = running.enter_context(start_engine())
        options = [*SERVICE_OPTIONS, "--wait-for-backend-s", "180"]  # vLLM starts slowly
        service = local.service([first.url], log=tmp_path / "service.log", options=options)
        url = running.enter_context(service).url
        starter = running.enter_context(ThreadPoolExecutor(1))

        class ReplaceEngine(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step == 1:
                    first.kill()
                    starter.submit(running.enter_context, start_engine())

        trainer = train(url=url, deadline_s=240, callbacks=[ReplaceEngine()])
    assert logged(trainer, "prorl/failed") == [0, 0]
    assert logged(trainer, "prorl/policy_lag") == [0, 0]
    assert worst(trainer) < 1e-4


def _in_the_second_step(call: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the call when one of the second step's rollouts is received."""
    follow, streams = RolloutClient.finish, itertools.count(1)

    def stream(*args: Any) -> Iterator[Rollout]:
        step = next(streams)
        for number, received in enumerate(follow(*args)):
            if (step, number) == (2, 0):
                call()
            yield received

    monkeypatch.setattr(RolloutClient, "finish", stream)


def test_training_survives_a_restart_of_the_service(
    train: Trainings,
    start_service: Callable[..., RestartedService],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The service is killed in the second step, when one of eight rollouts is received."""
    monkeypatch.setattr(failures, "RETRY_DELAY_S", 0)
    service = start_service("--run-workers", "1")
    _in_the_second_step(service.restart, monkeypatch)
    trainer = train(url=service.url)
    with RolloutClient(service.url) as client:
        status = client.status()
    assert "no longer knows the rollouts" in caplog.text
    assert len({one.rollout_id for one in train.observed}) == len(train.observed) == 16
    assert status.policy_version == 3, "weights were pushed twice, and again after the restart"
    assert status.rollouts.keys() <= {RolloutState.DONE, RolloutState.CANCELLED}
    assert logged(trainer, "prorl/failed") == [0, 0]
    assert worst(trainer) < 1e-4


def test_rollouts_of_a_drained_service_go_on_and_nothing_is_sampled_again(
    train: Trainings,
    start_service: Callable[..., RestartedService],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampled, journal = tmp_path / "sampled", str(tmp_path / "journal")
    service = start_service("--journal", journal, "--resume", "--run-workers", "2")

    def restart() -> None:
        time.sleep(0.25)
        service.process.process.send_signal(signal.SIGTERM)
        service.process.process.wait(60)
        service.start()

    _in_the_second_step(restart, monkeypatch)
    trainer = train(url=service.url, faults=[str(sampled)] * 8)
    assert len({one.rollout_id for one in train.observed}) == len(train.observed) == 16
    assert len(sampled.read_text().splitlines()) == 16 * 2
    assert [turn for one in train.observed for turn in one.resumed]
    assert logged(trainer, "prorl/failed") == [0, 0]
    assert worst(trainer) < 1e-4


def test_training_does_not_wait_forever_for_a_service_that_forgets(
    train: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "RETRY_DELAY_S", 0.1)
    follow = RolloutClient.finish

    def stream(client: RolloutClient, _: Any, timeout_s: float) -> Iterator[Rollout]:
        return follow(client, ["not-here.0"], timeout_s)

    monkeypatch.setattr(RolloutClient, "finish", stream)
    trainer = train.trainer(deadline_s=1)
    with pytest.raises(RolloutsFailed, match="no longer knows"):
        trainer.train()


@pytest.mark.logs(ALL_FAIL)
def test_training_does_not_continue_forever_without_rollouts(
    train_there: Trainings,
) -> None:
    options = {"max_steps": failures.MAX_LOST_CALLS}
    trainer = train_there.trainer(deadline_s=1, faults=["sandbox"] * 6, options=options)
    with pytest.raises(RolloutsFailed, match="no sandbox today"):
        trainer.train()
    assert len(logged(trainer, "prorl/failed")) == failures.MAX_LOST_CALLS - 1


def test_an_interrupt_cancels_running_rollouts(train: Trainings, service_url: str) -> None:
    def interrupt_once_rollouts_run() -> None:
        with RolloutClient(service_url) as client:
            for _ in range(200):
                if client.status().rollouts.get(RolloutState.INIT):
                    break
                time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    trainer = train.trainer(faults=["hang", "hang"])
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


def test_any_error_cancels_running_rollouts(
    train: Trainings, service_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stream(*_: Any) -> Iterator[Rollout]:
        raise MemoryError

    monkeypatch.setattr(RolloutClient, "finish", stream)
    trainer = train.trainer(faults=["hang", "hang"])
    with pytest.raises(MemoryError):
        trainer.train()
    with RolloutClient(service_url) as client:
        states = client.status().rollouts
    assert not states.keys() & {RolloutState.QUEUED, RolloutState.INIT}


@pytest.mark.parametrize(
    ("faults", "on_failure"), [(["agent", "agent"], "unscorable"), (["agent", None], "raise")]
)
def test_permanent_failures_end_training(
    train: Trainings, faults: list[str | None], on_failure: Any
) -> None:
    trainer = train.trainer(on_failure=on_failure, faults=faults)
    with pytest.raises(RolloutsFailed, match=r"this agent always fails\n +take another agent"):
        trainer.train()


def test_another_tokenizer_of_the_same_size_is_refused(
    train: Trainings, policy: Path, tmp_path: Path
) -> None:
    trainer = train.trainer(policy=with_tokens_swapped(policy, tmp_path / "other"))
    with pytest.raises(ValueError, match=r"tokenizer .*other.* is not that of"):
        trainer.train()


def test_evaluation_before_training_uses_the_trainers_weights(train: Trainings) -> None:
    """The engine has the weights of another training."""
    train()
    trainer = train.trainer()
    trainer.evaluate()
    assert worst(trainer) < 1e-4


def test_an_unreachable_service_ends_training_immediately(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout, "FIRST_CONTACT_S", 0.2)
    with status_service() as url:
        trainer = make_trainer(ProRLRollout(url), policy, tmp_path)
    with pytest.raises(ServiceCallError, match=r"ConnectError(.|\n)*prorl serve"):
        trainer.train()
