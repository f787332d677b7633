"""Sessions at a NeMo Gym server: cookies, budgets, and who is blamed for what."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from prorl_service.errors import (
    EvaluatorError,
    InvalidRequest,
    ProRLError,
    TaskError,
    ToolServerError,
)
from prorl_service.schemas import Blame
from prorl_service.tools.nemo_gym import servers
from prorl_service.tools.nemo_gym.failures import SessionLost, ToolServerAway
from prorl_service.tools.nemo_gym.servers import NemoGymServer, NemoGymServers
from prorl_service.tools.remote import MAX_OUTPUT_BYTES
from prorl_service.tools.spec import NemoGymSpec
from tests.tools.gym_stub import StubGym, drops, gives, hangs

ROW: dict[str, Any] = {"responses_create_params": {"input": "Hi"}, "expected": 3}
LONG_S = 30.0


@pytest.fixture
async def gym() -> AsyncIterator[StubGym]:
    async with StubGym() as gym:
        yield gym


@pytest.fixture
async def server(gym: StubGym) -> AsyncIterator[NemoGymServer]:
    async with NemoGymServers([NemoGymSpec("gym", gym.url, key="secret")]) as named:
        yield named["gym"]


async def test_each_session_sends_its_own_cookie(gym: StubGym, server: NemoGymServer) -> None:
    gym.routes["verify"] = gives(reward=1)
    first, second = [await server.seed(ROW, timeout_s=LONG_S) for _ in range(2)]
    for session in (second, first, second):
        await session.call("look", {"at": "it"}, timeout_s=LONG_S)
    assert await first.verify({"all": 1}, timeout_s=LONG_S) == {"reward": 1}
    assert gym.of("seed_session") == [(None, ROW), (None, ROW)]
    assert gym.of("look") == [(session, {"at": "it"}) for session in ("s2", "s1", "s2")]
    assert gym.of("verify") == [("s1", {"all": 1})]


async def test_a_cookie_that_a_tool_renews_is_sent_from_then_on(
    gym: StubGym, server: NemoGymServer
) -> None:
    async def renew(request: web.Request) -> web.StreamResponse:
        response = web.json_response({})
        response.set_cookie("session", "renewed", path="/")
        return response

    gym.routes["look"] = renew
    session = await server.seed(ROW, timeout_s=LONG_S)
    for _ in range(2):
        await session.call("look", {}, timeout_s=LONG_S)
    assert [cookie for cookie, _ in gym.of("look")] == ["s1", "renewed"]


async def test_the_key_is_sent_and_never_shown(gym: StubGym, server: NemoGymServer) -> None:
    await server.seed(ROW, timeout_s=LONG_S)
    assert gym.headers[0]["Authorization"] == "Bearer secret"
    assert "secret" not in repr(NemoGymSpec("gym", gym.url, key="secret"))


# --- seed ---------------------------------------------------------------------------------------


async def test_a_session_waits_for_a_server_that_comes_up(
    gym: StubGym, server: NemoGymServer
) -> None:
    await gym.stop()
    seeding = asyncio.create_task(server.seed(ROW, timeout_s=LONG_S))
    await asyncio.sleep(0)
    await gym.start()
    session = await seeding
    assert (await session.call("look", {}, timeout_s=LONG_S)).output == "{}"


async def test_a_server_that_stays_away_is_to_blame(gym: StubGym, server: NemoGymServer) -> None:
    await gym.stop()
    with pytest.raises(ToolServerAway, match="transport_unreachable in seed") as no:
        await server.seed(ROW, timeout_s=0.3)
    assert no.value.retryable
    assert "--nemo-gym" in no.value.hint


async def test_a_full_server_is_asked_again(gym: StubGym, server: NemoGymServer) -> None:
    answers = iter([gives(503, "full"), gives(429, "slow down")])

    async def seed(request: web.Request) -> web.StreamResponse:
        return await next(answers, gives())(request)

    gym.routes["seed_session"] = seed
    await server.seed(ROW, timeout_s=LONG_S)
    assert len(gym.of("seed_session")) == 3


@pytest.mark.parametrize(
    ("status", "error", "retryable"),
    [(422, TaskError, False), (404, TaskError, False), (500, ToolServerError, True)],
)
async def test_a_refused_row_is_the_tasks_fault(
    gym: StubGym, server: NemoGymServer, status: int, error: type[ProRLError], retryable: bool
) -> None:
    gym.routes["seed_session"] = gives(status, "no field 'count'")
    with pytest.raises(error, match=f"in seed: status {status}: no field 'count'") as refused:
        await server.seed(ROW, timeout_s=LONG_S)
    assert refused.value.retryable is retryable


# --- tools --------------------------------------------------------------------------------------


async def test_errors_of_tools_are_answers(gym: StubGym, server: NemoGymServer) -> None:
    gym.routes["look"] = gives(500, "ValueError('no')")
    session = await server.seed(ROW, timeout_s=LONG_S)
    looked = await session.call("look", {}, timeout_s=LONG_S)
    assert (looked.output, looked.is_error) == ("ValueError('no')", True)


async def test_a_tool_that_hangs_times_out(gym: StubGym, server: NemoGymServer) -> None:
    gym.routes["look"] = hangs
    session = await server.seed(ROW, timeout_s=LONG_S)
    looked = await session.call("look", {}, timeout_s=0.2)
    assert (looked.output, looked.is_error) == ("[timed out after 0.2 s]", True)
    assert (await session.call("other", {}, timeout_s=LONG_S)).output == "{}"


async def test_long_answers_are_cut(
    gym: StubGym, server: NemoGymServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gym.routes["look"] = gives(text="x" * 2**20)
    session = await server.seed(ROW, timeout_s=LONG_S)
    cut = await session.call("look", {}, timeout_s=LONG_S)
    assert len(cut.output) < MAX_OUTPUT_BYTES + 100
    monkeypatch.setattr(servers, "MAX_TOOL_BYTES", 2**16)
    refused = await session.call("look", {}, timeout_s=LONG_S)
    assert refused.output == "look failed: its answer has more than 65536 bytes"


async def test_a_redirection_is_not_followed(gym: StubGym, server: NemoGymServer) -> None:
    async def elsewhere(request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect("/secret")

    gym.routes["look"] = elsewhere
    session = await server.seed(ROW, timeout_s=LONG_S)
    assert (await session.call("look", {}, timeout_s=LONG_S)).is_error
    assert gym.of("secret") == []


async def test_a_server_that_drops_a_call_fails_the_rollout(
    gym: StubGym, server: NemoGymServer
) -> None:
    gym.routes["look"] = drops
    session = await server.seed(ROW, timeout_s=LONG_S)
    with pytest.raises(ToolServerAway, match="transport_peer_drop in agent") as dropped:
        await session.call("look", {}, timeout_s=LONG_S)
    assert dropped.value.retryable


async def until(server: NemoGymServer, *, is_up: bool) -> None:
    async with asyncio.timeout(LONG_S):
        while server.outages.is_up is not is_up:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_session_does_not_outlive_its_server(gym: StubGym, server: NemoGymServer) -> None:
    """Nobody calls the server while it is down."""
    gym.routes["verify"] = gives(reward=0)
    await until(server, is_up=True)
    idle = await server.seed(ROW, timeout_s=LONG_S)
    await gym.stop()
    await until(server, is_up=False)
    await gym.start()
    with pytest.raises(SessionLost, match="session_lost in verification") as lost:
        await idle.verify({}, timeout_s=LONG_S)
    assert lost.value.retryable
    assert gym.of("verify") == []
    fresh = await server.seed(ROW, timeout_s=LONG_S)
    assert await fresh.verify({}, timeout_s=LONG_S) == {"reward": 0}


async def test_an_idle_connection_that_ends_is_no_outage(
    gym: StubGym, server: NemoGymServer
) -> None:
    """A proxy between the service and the server closes idle connections."""
    closed = asyncio.Event()

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        closed.set()

    listener = await asyncio.start_server(close, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    async with listener, NemoGymServers([NemoGymSpec("gym", f"http://{host}:{port}")]) as named:
        for _ in range(3):
            closed.clear()
            await closed.wait()
        assert named["gym"].outages.count == 0


# --- verdicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "kind", "blame", "retryable"),
    [
        (gives(500, "KeyError('x')"), "verifier_error", Blame.EVALUATOR, False),
        (gives(422, "no field"), "verifier_error", Blame.EVALUATOR, False),
        (gives(503, "busy"), "provider_unavailable", Blame.SERVICE, True),
        (gives(text="NaN"), "verifier_error", Blame.EVALUATOR, False),
        (gives(text="[1]"), "verifier_error", Blame.EVALUATOR, False),
        (hangs, "transport_timeout", Blame.EVALUATOR, True),
        (drops, "transport_peer_drop", Blame.SERVICE, True),
        (
            gives(reward=0, mask_sample=True, failure_kind="judge_failed"),
            "judge_failed",
            Blame.EVALUATOR,
            True,
        ),
    ],
    ids=["500", "422", "503", "no-json", "no-object", "hangs", "drops", "masked"],
)
async def test_a_verifier_that_fails_gives_no_verdict(
    gym: StubGym, server: NemoGymServer, route: Any, kind: str, blame: Blame, retryable: bool
) -> None:
    gym.routes["verify"] = route
    session = await server.seed(ROW, timeout_s=LONG_S)
    with pytest.raises(ProRLError, match=f"{kind} in verification") as failed:
        await session.verify({}, timeout_s=0.5)
    assert (failed.value.blame, failed.value.retryable) == (blame, retryable)


async def test_a_verdict_is_bounded(
    gym: StubGym, server: NemoGymServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "MAX_VERDICT_BYTES", 2**16)
    gym.routes["verify"] = gives(reward=1, document="x" * 2**16)
    session = await server.seed(ROW, timeout_s=LONG_S)
    with pytest.raises(EvaluatorError, match="more than 65536 bytes"):
        await session.verify({}, timeout_s=LONG_S)


# --- configuration ------------------------------------------------------------------------------


def test_tasks_choose_among_the_names() -> None:
    with pytest.raises(InvalidRequest, match="no NeMo Gym server 'web'") as unknown:
        NemoGymServers([NemoGymSpec("gym", "http://one")])["web"]
    assert "this service has: gym" in unknown.value.hint
