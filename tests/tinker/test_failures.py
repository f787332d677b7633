"""A Tinker server that dies or is full, a service that dies, an account that is refused."""

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tinker

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.schemas import Blame
from prorl_tinker import TinkerServerLost
from prorl_tinker import engine as engine_module
from prorl_tinker.engine import NoTrainingClient
from recipes.common import tinker_server
from tests.faults.processes import port_to_come_back_to
from tests.tinker.training import (
    EXACT,
    SERVICE_OPTIONS,
    new_client,
    rollouts,
    tasks,
    update,
    versions,
)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

LOST_AFTER_S = 60.0


@pytest.fixture
def own_server(policy: Path, tmp_path: Path) -> Iterator[local.LocalProcess]:
    """Yields a server to kill, with room for one training client."""
    with tinker_server.running(policy, tmp_path, adapters=2) as server:
        yield server


def connected(server: local.LocalProcess) -> Any:
    return tinker.ServiceClient(base_url=server.url, api_key="tml-dummy")


def test_a_killed_training_server_ends_the_step_with_what_to_do(
    own_server: local.LocalProcess,
    policy: Path,
    service_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "PROBE_S", 1.0)
    monkeypatch.setattr(engine_module, "SILENT_S", 3.0)
    client = new_client(connected(own_server), policy)
    with rollouts(service_url, client, deadline_s=LOST_AFTER_S) as own:
        step = own.step()
        own_server.kill()
        future = client.forward_backward(step.data, "importance_sampling")
        with pytest.raises(TinkerServerLost, match="has not answered for") as lost:
            own.check(step.data, future)
        assert "checkpoint" in lost.value.hint
        with pytest.raises(TinkerServerLost):
            own.step()


@pytest.mark.on_demand
def test_rollouts_of_a_killed_training_server_fail_by_its_fault(
    own_server: local.LocalProcess,
    policy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "PROBE_S", 1.0)
    monkeypatch.setattr(engine_module, "SILENT_S", 3.0)
    turns = tmp_path / "turns"
    options = [*SERVICE_OPTIONS, "--wait-for-backend-s", "2", "--max-attempts", "1"]
    with local.service([], log=tmp_path / "service.log", options=options) as service:
        client = new_client(connected(own_server), policy)
        slow = tasks(fault=str(turns))
        with rollouts(service.url, client, tasks=slow, deadline_s=LOST_AFTER_S) as own:
            killer = threading.Thread(target=kill_when, args=(turns, own_server))
            killer.start()
            step = own.step()
            killer.join()
            errors = [one.error for group in step.groups for one in group if one.error]
            assert errors
            assert {one.blame for one in errors} == {Blame.BACKEND}
            assert all(one.retryable for one in errors)
            with pytest.raises(TinkerServerLost):
                own.step()


def kill_when(file: Path, server: local.LocalProcess) -> None:
    """Kills the server once rollouts have had a turn."""
    wait = threading.Event()
    while not file.exists():
        wait.wait(0.05)
    server.kill()


@pytest.mark.logs("skyrl/tinker")
def test_a_full_server_says_so(own_server: local.LocalProcess, policy: Path) -> None:
    service = connected(own_server)
    new_client(service, policy)
    with pytest.raises(NoTrainingClient, match=r"Maximum number of LoRA adapters \(2\)") as full:
        new_client(service, policy)
    assert "more slots" in full.value.hint


@pytest.mark.parametrize("options", [(), ("--journal", "{}/journal")], ids=["forgets", "journal"])
def test_a_killed_service_costs_no_step(
    options: tuple[str, ...],
    service_client: Any,
    policy: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    turns, port, log = tmp_path / "turns", port_to_come_back_to(), tmp_path / "service.log"
    given = [*SERVICE_OPTIONS, *(one.format(tmp_path) for one in options)]
    given += ["--resume"] if options else []
    client = new_client(service_client, policy)
    with ExitStack() as running:
        service = running.enter_context(local.service([], log=log, port=port, options=given))

        def restart() -> None:
            wait = threading.Event()
            while not turns.exists():
                wait.wait(0.05)
            service.kill()
            running.enter_context(local.service([], log=log, port=port, options=given))

        slow = tasks(fault=str(turns))
        with rollouts(service.url, client, tasks=slow) as own, caplog.at_level(logging.WARNING):
            restarter = threading.Thread(target=restart)
            restarter.start()
            step = own.step()
            restarter.join()
            assert versions(step) == {1}
            assert update(own, client, step)["prorl/off_policy_max"] <= EXACT
            assert update(own, client, own.step())["prorl/off_policy_max"] <= EXACT
            with RolloutClient(service.url) as reader:
                assert len(reader.backends()) == 1
