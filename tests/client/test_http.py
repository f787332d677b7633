"""Both clients over real HTTP, against a server with scripted answers and faults."""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event
from typing import Any

import pytest
from pydantic import BaseModel

from prorl_service.client import AsyncRolloutClient, RolloutClient, ServiceCallError, WaitTimeout
from prorl_service.errors import BackendUnavailable, Conflict, InvalidRequest, ProRLError
from prorl_service.schemas import (
    Backends,
    BackendState,
    BackendStatus,
    ErrorResponse,
    FinishReason,
    Group,
    Message,
    Rollout,
    Rollouts,
    RolloutState,
    Sampling,
    Segment,
    ServiceStatus,
    Task,
    Trajectory,
    Turn,
    WeightsReport,
)
from prorl_service.schemas.arrays import PACKED, PACKED_MEDIA_TYPE

Reply = Callable[[BaseHTTPRequestHandler], None]
Invoke = Callable[..., Any]


@dataclass
class Service:
    """A service that answers the n-th request with the n-th reply."""

    url: str = ""
    replies: deque[Reply] = field(default_factory=deque)
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    accept: str = ""
    authorization: str | None = None

    def will(self, *replies: Reply) -> None:
        self.replies.extend(replies)


@pytest.fixture
def service() -> Iterator[Service]:
    script = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            script.accept = self.headers["Accept"]
            script.authorization = self.headers["Authorization"]
            script.requests.append((self.command, self.path, read_body(self)))
            script.replies.popleft()(self)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, ThreadPoolExecutor(1) as pool:
        script.url = f"http://127.0.0.1:{server.server_port}"
        pool.submit(server.serve_forever, 0.01)
        yield script
        server.shutdown()
    assert not script.replies, "the client made fewer calls than expected"


@pytest.fixture(params=["sync", "async"])
def invoke(request: pytest.FixtureRequest, service: Service) -> Invoke:
    """`invoke("wait", ids, 5)` calls the method on a fresh client; streams become lists."""

    def sync(method: str, *args: Any, **options: Any) -> Any:
        with RolloutClient(service.url, **options) as client:
            answer = getattr(client, method)(*args)
            return list(answer) if method == "stream" else answer

    async def asynchronous(method: str, *args: Any, **options: Any) -> Any:
        async with AsyncRolloutClient(service.url, **options) as client:
            answer = getattr(client, method)(*args)
            return [one async for one in answer] if method == "stream" else await answer

    def run(method: str, *args: Any, **options: Any) -> Any:
        return asyncio.run(asynchronous(method, *args, **options))

    return sync if request.param == "sync" else run


def read_body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers["Transfer-Encoding"] != "chunked":
        return handler.rfile.read(int(handler.headers["Content-Length"] or 0))
    chunks = []
    while size := int(handler.rfile.readline(), 16):
        chunks.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(chunks)


def answers(model: BaseModel, status: int = 200) -> Reply:
    return raw(model.model_dump_json(context=PACKED).encode(), status)


def fails(error: ProRLError, status: int | None = None) -> Reply:
    return answers(ErrorResponse(error=error.info()), status or error.status)


def raw(body: bytes, status: int = 200) -> Reply:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return reply


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def streams(*pieces: bytes, breaks: bool = False, hold: Event | None = None) -> Reply:
    """Returns a chunked reply; `breaks` drops the connection instead of ending it, after `hold`."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for piece in pieces:
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        if hold is not None:
            hold.wait(30)
        if breaks:
            handler.close_connection = True
        else:
            handler.wfile.write(b"0\r\n\r\n")

    return reply


def group(n: int = 2) -> Group:
    messages = [Message(role="user", content="add 1 2")]
    return Group(group_id="run-0-0", task=Task(task_id="t", agent="math", messages=messages), n=n)


def rollout(index: int, text: str = "3") -> Rollout:
    segment = Segment(
        prompt_ids=[1, 2],
        response_ids=[3, 4, 5],
        loss_mask=[1, 0, 1],
        logprobs=[-0.5, 0.0, -0.25],
        policy_versions=[7, -1, 7],
    )
    turn = Turn(segment=0, start=0, stop=1, text=text, finish_reason="stop", model_s=0, backend="b")
    trajectory = Trajectory(
        segments=[segment],
        turns=[turn],
        finish_reason=FinishReason.FINISHED,
        sampling=Sampling(),
    )
    return Rollout(
        rollout_id=f"run-0-0.{index}",
        group_id="run-0-0",
        task_id="t",
        agent="math",
        index=index,
        state=RolloutState.DONE,
        reward=1.0,
        trajectory=trajectory,
        created_at=0,
    )


def line(index: int, text: str = "3") -> bytes:
    return rollout(index, text).model_dump_json(context=PACKED).encode() + b"\n"


BACKEND = BackendStatus(
    backend_id="b0",
    url="http://engine:8000",
    model="m",
    state=BackendState.HEALTHY,
    policy_version=0,
    max_model_len=64,
    in_flight=0,
)
STATUS = ServiceStatus(
    run="run-1",
    version="0",
    is_stopping=False,
    policy_version=0,
    sandbox="process",
    agents=["math"],
    rollouts={},
    queues={},
    workers={},
    backends=[BACKEND],
)
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
    service: Service,
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


def test_submit_sends_what_the_service_needs(service: Service, invoke: Invoke) -> None:
    service.will(answers(Rollouts(rollouts=[]), 202))
    invoke("submit", [group(n=3)], token="secret")
    sent = json.loads(service.requests[0][2])["groups"][0]
    assert Group.model_validate(sent) == group(n=3)
    assert service.authorization == "Bearer secret"


@pytest.mark.parametrize(("wire", "packed"), [("packed", True), ("json", False)])
def test_the_wire_format_is_requested(
    service: Service, invoke: Invoke, wire: str, packed: bool
) -> None:
    service.will(raw(rollout(0).model_dump_json(context=PACKED if packed else None).encode()))
    assert invoke("get", "r.0", wire=wire) == rollout(0)
    assert (PACKED_MEDIA_TYPE in service.accept) is packed


def test_health_passes_only_for_a_rollout_service(service: Service, invoke: Invoke) -> None:
    service.will(raw(b'{"status":"ok"}'), raw(b"<html>"))
    invoke("health")
    with pytest.raises(ServiceCallError, match="UnexpectedAnswer"):
        invoke("health")


def test_wait_returns_rollouts_in_the_order_asked_for(service: Service, invoke: Invoke) -> None:
    service.will(streams(line(1), b"\n", line(0)))
    assert [one.index for one in invoke("wait", ["run-0-0.0", "run-0-0.1"], 5)] == [0, 1]


def test_an_empty_wait_sends_no_request(invoke: Invoke) -> None:
    assert invoke("wait", [], 5) == []


def test_lines_may_be_cut_anywhere_and_hold_any_text(service: Service, invoke: Invoke) -> None:
    content = line(0, "a\u2028b\u0085c") + line(1)
    cuts = [content[i : i + 7] for i in range(0, len(content), 7)]
    service.will(streams(*cuts))
    assert invoke("wait", ["run-0-0.0", "run-0-0.1"], 5)[0] == rollout(0, "a\u2028b\u0085c")


@pytest.mark.slow
def test_a_broken_stream_is_resumed_for_the_missing_rollouts(
    service: Service, invoke: Invoke
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


def test_wait_times_out_with_the_pending_ids(service: Service, invoke: Invoke) -> None:
    let_go = Event()
    service.will(streams(line(0), hold=let_go))
    with pytest.raises(WaitTimeout, match=r"1 rollouts did not end within 0\.3 s") as caught:
        invoke("wait", ["run-0-0.0", "run-0-0.1"], 0.3)
    let_go.set()
    assert caught.value.pending == ["run-0-0.1"]
    assert isinstance(caught.value, TimeoutError)


def test_unknown_rollout_ends_a_stream(service: Service, invoke: Invoke) -> None:
    service.will(fails(InvalidRequest("no rollout 'x'"), 404))
    with pytest.raises(ServiceCallError, match="404 InvalidRequest: no rollout 'x'"):
        invoke("stream", ["x"], 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [hangs_up, fails(BackendUnavailable("no engine")), raw(b"<h1>Bad Gateway</h1>", 502)],
    ids=["connection dropped", "503", "a proxy's 502"],
)
def test_transient_failures_are_retried(service: Service, invoke: Invoke, fault: Reply) -> None:
    service.will(fault, fault, answers(STATUS))
    assert invoke("status") == STATUS


def test_retries_end_with_their_budget(service: Service, invoke: Invoke) -> None:
    service.will(fails(BackendUnavailable("no engine is up", hint="start one")))
    with pytest.raises(ServiceCallError, match="503 BackendUnavailable: no engine is up") as caught:
        invoke("status", retry_s=0)
    assert caught.value.retryable
    assert caught.value.http_status == 503
    assert caught.value.hint == "start one"


def test_refusals_are_not_retried_and_say_what_to_do(service: Service, invoke: Invoke) -> None:
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


def test_a_url_without_a_scheme_is_refused_immediately() -> None:
    with pytest.raises(ProRLError, match="'localhost:8080' is not a service's URL") as refused:
        RolloutClient("localhost:8080")
    assert refused.value.hint == "write it as 'http://localhost:8080'"


@pytest.mark.parametrize("url", ["http://localhost:80:", "http://localhost:port"])
def test_a_url_that_cannot_be_read_is_said_in_one_line(url: str) -> None:
    with pytest.raises(ProRLError, match="is not a service's URL: Invalid port") as refused:
        RolloutClient(url)
    assert refused.value.hint == "write it as 'http://HOST:PORT'"


class Pieces:
    """Weights that can be sent again."""

    def __iter__(self) -> Iterator[bytes]:
        yield b"head"
        yield b"tail"


def test_weights_are_sent_again_after_a_fault(service: Service, invoke: Invoke) -> None:
    service.will(hangs_up, answers(REPORT))
    assert invoke("stream_weights", Pieces()) == REPORT
    assert service.requests[0] == service.requests[1], "one push, sent twice"
    assert service.requests[0][2] == b"headtail"


def test_one_shot_weights_are_not_sent_twice(service: Service, invoke: Invoke) -> None:
    service.will(hangs_up)
    with pytest.raises(ServiceCallError):
        invoke("stream_weights", iter(Pieces()))
