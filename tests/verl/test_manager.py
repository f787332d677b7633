"""The manager between a service and VeRL's engines, without a trainer."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import ray

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.engine_gateway import Gateway
from prorl_service.client.policy import HeldPolicy
from prorl_service.client.trainable import failure_of
from prorl_service.schemas import Group, Limits, Sampling
from prorl_verl import manager, store
from prorl_verl.engines import Engines
from prorl_verl.manager import ProRLAgentLoopManager
from prorl_verl.scoring import Scored
from prorl_verl.settings import settings_of
from prorl_verl.store import Prompt
from tests import builders
from tests.verl.counting_server import client_of, counting
from tests.verl.test_settings import config

OPTIONS = ["--sandbox", "process", "--agent", "tests.verl.turns_agent:OneTurnAgent"]
N = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[Any]]:
    """Yields two engines, of which each may be another trainer's."""
    with counting(2) as servers:
        yield servers


@pytest.fixture
def servers(cluster: list[Any]) -> list[Any]:
    ray.get([server.reset.remote() for server in cluster])
    return cluster


@pytest.fixture(autouse=True)
def _no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "add_to_log", lambda *_: None)
    monkeypatch.setattr(store, "before_close", lambda _: None)


@cache
def policy_of(url: str) -> HeldPolicy:
    """Returns the policy that all managers of a test hold: they are of one training."""
    return HeldPolicy(url).claim()


def manager_of(server: Any, url: str, model: Path, mode: str = "sync") -> ProRLAgentLoopManager:
    sections = config(
        prorl__url=url,
        prorl__tokenizer=str(model),
        actor_rollout_ref__model={"path": str(model)},
        trainer__v1__trainer_mode=mode,
    )
    settings = settings_of(sections)
    return ProRLAgentLoopManager(
        sections, settings, client_of(server), policy_of(url), lambda: None
    )


def score(met: ProRLAgentLoopManager, url: str, name: str) -> list[Scored]:
    """Returns the rollouts of a group that has ended, with their rows."""
    task = builders.task(agent="one-turn")
    limits = Limits(max_response_tokens=99)
    sampling = Sampling(max_tokens_per_turn=3)
    group = Group(group_id=name, task=task, n=N, sampling=sampling, limits=limits)
    with RolloutClient(url) as client:
        client.submit([group])
        rollouts = client.wait(group.rollout_ids(), 60)
    return met._do(met._score(Prompt(name, {"uid": name}, group, 1, "train"), rollouts))


def test_no_token_of_another_trainers_engine_is_in_a_row(
    servers: list[Any], tiny_model: Path, tmp_path: Path
) -> None:
    """Both have the same weights, as far as their numbers tell."""
    with local.service([], log=tmp_path / "log", options=OPTIONS) as service:
        met = manager_of(servers[0], service.url, tiny_model)
        assert all(rows for _, rows in score(met, service.url, "before"))
        engines = Engines(client_of(servers[1]), max_in_flight=8)
        own = {"model": str(tiny_model), "root": str(tiny_model), "api_key": "key"}
        gateway = Gateway(engines, max_model_len=132, **own)
        other = f"127.0.0.1:{met._do(gateway.start('127.0.0.1', 0))}"
        with RolloutClient(service.url, training=met._policy.key) as client:
            client.add_backend(f"http://{other}", str(tiny_model), api_key="key")
        ray.get([server.meet.remote(N // 2) for server in servers])
        scored = score(met, service.url, "after")
        met._end()
        met._do(gateway.stop())
    failed = [failure_of(rollout) for rollout, rows in scored if not rows]
    assert 0 < len(failed) < N
    for error in failed:
        assert error is not None
        assert f"tokens of {other}: this trainer's engines" in error.message


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_only_current_weights_are_in_the_rows_of_synchronous_training(
    servers: list[Any], tiny_model: Path, tmp_path: Path, mode: str
) -> None:
    with local.service([], log=tmp_path / "log", options=OPTIONS) as service:
        met = manager_of(servers[0], service.url, tiny_model, mode)
        assert all(rows for _, rows in score(met, service.url, "first"))
        late = score_later(met, service.url, servers[0])
        met._end()
    assert [bool(rows) for _, rows in late] == [mode != "sync"] * N
    if mode == "sync":
        errors = [failure_of(rollout) for rollout, _ in late]
        assert {one.message for one in errors if one} == {
            "weights of version 0 sampled it, the trainer's are 1"
        }


def score_later(met: ProRLAgentLoopManager, url: str, server: Any) -> list[Scored]:
    """Returns the first group, scored after the engines have had other weights."""
    ray.get(server.set.remote(version=1))
    assert all(rows for _, rows in score(met, url, "second"))
    return score(met, url, "first")
