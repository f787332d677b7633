"""Both clients over real HTTP, against a server with scripted answers and faults."""

import json
import logging
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest
from pydantic import BaseModel

from prorl_service import __version__
from prorl_service.client import (
    RolloutClient,
    ServiceCallError,
    WaitTimeout,
    retries,
)
from prorl_service.errors import BackendUnavailable, Conflict, InvalidRequest, ProRLError
from prorl_service.schemas import (
    Backends,
    Group,
    Rollout,
    Rollouts,
    WeightsReport,
)
from prorl_service.schemas.arrays import PACKED, PACKED_MEDIA_TYPE
from tests import builders
from tests.client.scripted import (
    Reply,
    ScriptedService,
    answers,
    fails,
    hangs_up,
    raw,
    streams,
)

Invoke = Callable[..., Any]


def group(n: int = 2) -> Group:
    return Group(group_id="run-0-0", task=builders.task(), n=n)


def rollout(index: int, text: str = "3") -> Rollout:
    return builders.rollout(f"run-0-0.{index}", builders.segment(), turns=1, text=text)


def line(index: int, text: str = "3") -> bytes:
    return rollout(index, text).model_dump_json(context=PACKED).encode() + b"\n"


BACKEND = builders.backend(backend_id="b0", url="http://engine:8000")
STATUS = builders.status(version="0", agents=["math"], backends=[BACKEND])
REPORT = WeightsReport(version=3, applied=["b0"], pending=[])


@pytest.mark.parametrize(
    ("method", "args", "wire_answer", "answer", "request_line"),
    [
        (
            "submit",
            ([group()],),
            Rollouts(rollouts=[rollout(0)]),
            [rollout(0)],
            "POST /v1/rollouts",
        ),
        ("get", ("r.0", 2), rollout(0), rollout(0), "GET /v1/rollouts/r.0?wait_s=2"),
        ("cancel", (["r"],), Rollouts(rollouts=[]), [], "POST /v1/rollouts/cancel"),
        ("backends", (), Backends(backends=[BACKEND]), [BACKEND], "GET /v1/backends"),
        ("add_backend", ("http://engine:8000",), BACKEND, BACKEND, "POST /v1/backends"),
        ("remove_backend", ("b0",), BACKEND, BACKEND, "DELETE /v1/backends/b0"),
        ("load_weights", ("/weights",), REPORT, REPORT, "POST /v1/weights"),
        ("status", (), STATUS, STATUS, "GET /v1/status"),
    ],
)
def test_each_call_is_sent_and_parsed(
    service: ScriptedService,
    invoke: Invoke,
    method: str,
    args: tuple[Any, ...],
    wire_answer: BaseModel,
    answer: Any,
    request_line: str,
) -> None:
    service.will(answers(wire_answer))
    assert invoke(method, *args) == answer
    sent_method, path, _ = service.requests[0]
    assert f"{sent_method} {path}" == request_line


def test_submit_sends_what_the_service_needs(service: ScriptedService, invoke: Invoke) -> None:
    service.will(answers(Rollouts(rollouts=[]), 202))
    invoke("submit", [group(n=3)], token="secret")
    sent = json.loads(service.requests[0][2])["groups"][0]
    assert Group.model_validate(sent) == group(n=3)
    assert service.authorization == "Bearer secret"


@pytest.mark.parametrize(("wire", "packed"), [("packed", True), ("json", False)])
def test_the_wire_format_is_requested(
    service: ScriptedService, invoke: Invoke, wire: str, packed: bool
) -> None:
    service.will(raw(rollout(0).model_dump_json(context=PACKED if packed else None).encode()))
    assert invoke("get", "r.0", wire=wire) == rollout(0)
    assert (PACKED_MEDIA_TYPE in service.accept) is packed


def test_health_passes_only_for_a_rollout_service(service: ScriptedService, invoke: Invoke) -> None:
    service.will(raw(b'{"status":"ok"}'), raw(b"<html>"))
    invoke("health")
    with pytest.raises(ServiceCallError, match="UnexpectedAnswer"):
        invoke("health")


def test_wait_returns_rollouts_in_the_order_asked_for(
    service: ScriptedService, invoke: Invoke
) -> None:
    service.will(streams(line(1), b"\n", line(0)))
    assert [one.index for one in invoke("wait", ["run-0-0.0", "run-0-0.1"], 5)] == [0, 1]


def test_an_empty_wait_sends_no_request(invoke: Invoke) -> None:
    assert invoke("wait", [], 5) == []


def test_lines_may_be_cut_anywhere_and_hold_any_text(
    service: ScriptedService, invoke: Invoke
) -> None:
    content = line(0, "a\u2028b\u0085c") + line(1)
    cuts = [content[i : i + 7] for i in range(0, len(content), 7)]
    service.will(streams(*cuts))
    assert invoke("wait", ["run-0-0.0", "run-0-0.1"], 5)[0] == rollout(0, "a\u2028b\u0085c")


@pytest.mark.slow
def test_a_broken_stream_is_resumed_for_the_missing_rollouts(
    service: ScriptedService, invoke: Invoke
) -> None:
    half_a_line = line(1)[:40]
    service.will(
        streams(line(0), half_a_line, breaks=True),
        hangs_up,
        fails(BackendUnavailable("starting")),
        streams(line(1)),
        streams(line(2)),
    )
    ids = [f"run-0-0.{index}" for index in range(3)]
    assert [one.index for one in invoke("stream", ids, 20)] == [0, 1, 2]
    asked = [json.loads(body)["rollout_ids"] for _, _, body in service.requests]
    assert asked == [ids, ids[1:], ids[1:], ids[1:], ids[2:]]


def test_wait_times_out_with_the_pending_ids(service: ScriptedService, invoke: Invoke) -> None:
    let_go = Event()
    service.will(streams(line(0), hold=let_go))
    with pytest.raises(WaitTimeout, match=r"1 rollouts did not end within 0\.3 s") as caught:
        invoke("wait", ["run-0-0.0", "run-0-0.1"], 0.3)
    let_go.set()
    assert caught.value.pending == ["run-0-0.1"]
    assert isinstance(caught.value, TimeoutError)


def test_unknown_rollout_ends_a_stream(service: ScriptedService, invoke: Invoke) -> None:
    service.will(fails(InvalidRequest("no rollout 'x'"), 404))
    with pytest.raises(ServiceCallError, match="404 InvalidRequest: no rollout 'x'"):
        invoke("stream", ["x"], 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [hangs_up, fails(BackendUnavailable("no engine")), raw(b"<h1>Bad Gateway</h1>", 502)],
    ids=["connection dropped", "503", "a proxy's 502"],
)
def test_transient_failures_are_retried(
    service: ScriptedService, invoke: Invoke, fault: Reply
) -> None:
    service.will(fault, fault, answers(STATUS))
    assert invoke("status") == STATUS


def test_retries_end_with_their_budget(service: ScriptedService, invoke: Invoke) -> None:
    service.will(fails(BackendUnavailable("no engine is up", hint="start one")))
    with pytest.raises(ServiceCallError, match="503 BackendUnavailable: no engine is up") as caught:
        invoke("status", retry_s=0)
    assert caught.value.retryable
    assert caught.value.http_status == 503
    assert caught.value.hint == "start one"


def test_refusals_are_not_retried_and_say_what_to_do(
    service: ScriptedService, invoke: Invoke
) -> None:
    service.will(
        fails(Conflict("group 'run-0-0' exists with other content", hint="use a new group_id")),
        fails(InvalidRequest.of_field("groups.0.limits.max_turns", "must be at least 1")),
    )
    with pytest.raises(ServiceCallError) as conflict:
        invoke("submit", [group()])
    assert str(conflict.value) == (
        f"POST {service.url}/v1/rollouts: 409 Conflict: group 'run-0-0' exists with other content"
        "\n  use a new group_id"
    )
    with pytest.raises(ServiceCallError) as invalid:
        invoke("submit", [group()])
    assert "422" in str(invalid.value)
    assert str(invalid.value).count("groups.0.limits.max_turns: must be at least 1") == 1


def test_unreachable_service_is_named(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    with (
        RolloutClient(url, retry_s=0.2) as client,
        pytest.raises(ServiceCallError, match=f"GET {url}/health: ConnectError.*\n.*prorl serve"),
    ):
        client.health()


@pytest.mark.slow
@pytest.mark.parametrize("call", [("status",), ("stream", ["g.0"], 60)])
def test_a_dead_service_is_reported_repeatedly(
    service: ScriptedService,
    invoke: Invoke,
    call: tuple[Any, ...],
    unused_tcp_port: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(retries, "FIRST_WARNING_S", 0.05)
    monkeypatch.setattr(retries, "NEXT_WARNING_S", 0.05)
    monkeypatch.setattr(retries, "LAST_DELAY_S", 0.1)
    service.url = f"http://127.0.0.1:{unused_tcp_port}"
    with pytest.raises(ServiceCallError):
        invoke(*call, retry_s=0.8)
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(lines) > 1
    assert all(service.url in line and "ConnectError" in line for line in lines)
    assert all("\n" not in line for line in lines)


def test_a_short_outage_is_not_logged(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    with RolloutClient(url, retry_s=0.8) as client, pytest.raises(ServiceCallError):
        client.status()
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


def test_versions_that_differ_are_reported_once(
    service: ScriptedService, caplog: pytest.LogCaptureFixture
) -> None:
    for version in ("9.9", "9.9", __version__):
        service.will(answers(STATUS.model_copy(update={"version": version})))
    with RolloutClient(service.url) as client:
        assert [client.status().version for _ in range(3)] == ["9.9", "9.9", __version__]
    (line,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert "the service is prorl-service 9.9, this client is" in line


@pytest.mark.parametrize(
    ("url", "message", "hint"),
    [
        ("localhost:8080", "is not a service's URL", "write it as 'http://localhost:8080'"),
        ("http://localhost:80:", "is not a service's URL: Invalid port", "'http://HOST:PORT'"),
        ("http://localhost:port", "is not a service's URL: Invalid port", "'http://HOST:PORT'"),
        ("http://a:8080,http://b:8080", "names several services", "name one front"),
    ],
)
def test_what_is_not_the_url_of_one_service_is_refused_in_one_line(
    url: str, message: str, hint: str
) -> None:
    with pytest.raises(ProRLError, match=f"'{url}' {message}") as refused:
        RolloutClient(url)
    assert hint in refused.value.hint
    assert "\n" not in str(refused.value)


class Pieces:
    """Weights that can be sent again."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"head"
        yield b"tail"


def test_weights_are_sent_again_after_a_fault(service: ScriptedService, invoke: Invoke) -> None:
    service.will(hangs_up, answers(REPORT))
    assert invoke("stream_weights", Pieces()) == REPORT
    assert service.requests[0] == service.requests[1], "one push, sent twice"
    assert service.requests[0][2] == b"headtail"


def test_one_shot_weights_are_not_sent_twice(service: ScriptedService, invoke: Invoke) -> None:
    service.will(hangs_up)
    with pytest.raises(ServiceCallError):
        invoke("stream_weights", iter(Pieces()))


async def test_a_blocking_client_works_in_a_running_loop(service: ScriptedService) -> None:
    service.will(answers(STATUS), streams(line(0), line(1)))
    with RolloutClient(service.url) as client:
        assert client.status() == STATUS
        assert [one.index for one in client.wait(["run-0-0.0", "run-0-0.1"], 5)] == [0, 1]


def test_an_interrupted_call_leaves_the_client_usable(service: ScriptedService) -> None:
    def interrupted() -> Iterator[bytes]:
        yield b"head"
        raise KeyboardInterrupt

    service.will(answers(STATUS))
    with RolloutClient(service.url) as client:
        with pytest.raises(KeyboardInterrupt):
            client.stream_weights(interrupted())
        assert client.status() == STATUS
