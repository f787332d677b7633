"""Outages: a client that waits reports a silent service; rollouts name a dead engine."""

import asyncio
import logging
from typing import Any

import pytest

from prorl_service import __version__
from prorl_service.client import (
    AsyncRolloutClient,
    RolloutClient,
    ServiceCallError,
    requests,
    retries,
)
from prorl_service.client.trainable import blamed_on_engines, failure_of, outage_of
from prorl_service.schemas import (
    BackendState,
    BackendStatus,
    Blame,
    Rollout,
    RolloutState,
    ServiceStatus,
)


def ask_blocking(url: str) -> None:
    with RolloutClient(url, retry_s=0.8) as client:
        client.status()


def ask_async(url: str) -> None:
    async def ask() -> None:
        async with AsyncRolloutClient(url, retry_s=0.8) as client:
            await client.status()

    asyncio.run(ask())


def follow(url: str) -> None:
    with RolloutClient(url, retry_s=0.8) as client:
        list(client.stream(["g.0"], 60))


@pytest.mark.slow
@pytest.mark.parametrize("ask", [ask_blocking, ask_async, follow])
def test_a_dead_service_is_reported_repeatedly(
    ask: Any,
    unused_tcp_port: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(retries, "FIRST_WARNING_S", 0.05, raising=False)
    monkeypatch.setattr(retries, "NEXT_WARNING_S", 0.05, raising=False)
    monkeypatch.setattr(retries, "LAST_DELAY_S", 0.1)
    url = f"http://127.0.0.1:{unused_tcp_port}"
    with caplog.at_level(logging.WARNING), pytest.raises(ServiceCallError):
        ask(url)
    assert len(caplog.messages) > 1
    assert all(url in line and "ConnectError" in line for line in caplog.messages)
    assert all("\n" not in line for line in caplog.messages)


def test_a_short_outage_is_not_logged(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(ServiceCallError):
        ask_blocking(f"http://127.0.0.1:{unused_tcp_port}")
    assert caplog.messages == []


def backend(state: BackendState, reason: str = "") -> BackendStatus:
    return BackendStatus(
        backend_id="e:1",
        url="http://e:1",
        model="m",
        state=state,
        policy_version=0,
        max_model_len=9,
        in_flight=0,
        reason=reason,
    )


def rollout(state: RolloutState) -> Rollout:
    return Rollout(
        rollout_id="g.0",
        group_id="g",
        task_id="t",
        agent="math",
        index=0,
        state=state,
        created_at=0.0,
    )


def test_no_engine_is_an_outage() -> None:
    assert outage_of([backend(BackendState.DOWN), backend(BackendState.HEALTHY)]) is None
    assert outage_of([backend(BackendState.UPDATING)]) is None
    down = outage_of([backend(BackendState.DOWN, "connection refused")])
    assert down is not None
    assert (down.kind, down.blame, down.retryable) == ("BackendUnavailable", Blame.BACKEND, True)
    assert "http://e:1 (connection refused)" in down.message
    nothing = outage_of([])
    assert nothing is not None
    assert "no inference engine" in nothing.message


def test_rollouts_cancelled_in_an_outage_are_blamed_on_it() -> None:
    outage = outage_of([backend(BackendState.DOWN, "gone")])
    cancelled = failure_of(blamed_on_engines(rollout(RolloutState.CANCELLED), outage))
    assert cancelled == outage
    late = failure_of(blamed_on_engines(rollout(RolloutState.CANCELLED), None))
    assert late is not None
    assert late.kind == "NotFinished"
    done = rollout(RolloutState.DONE)
    assert blamed_on_engines(done, outage) is done


def test_versions_that_differ_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    status = ServiceStatus(
        version="9.9",
        run="r",
        is_stopping=False,
        policy_version=0,
        sandbox="process",
        agents=[],
        rollouts={},
        queues={},
        workers={},
        backends=[],
    )
    raw = status.model_dump_json().encode()
    with caplog.at_level(logging.WARNING):
        assert requests.STATUS.answer(raw) == requests.STATUS.answer(raw) == status
    (line,) = caplog.messages
    assert "the service is prorl-service 9.9, this client is" in line
    requests.STATUS.answer(raw.replace(b"9.9", __version__.encode()))
    assert len(caplog.messages) == 1
