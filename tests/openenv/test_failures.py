"""Servers of OpenEnv that fail: rollouts fail, too, and none is scored."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from prorl_service.errors import InvalidRequest, ProRLError
from prorl_service.local import free_port
from prorl_service.schemas import Blame, Limits, Rollout, RolloutState, Stage
from prorl_service.testing import Reply, call
from prorl_service.testing.scripted_engine import CONTEXT_TOKENS
from prorl_service.testing.trial import rollouts
from prorl_service.tools.openenv import protocol
from prorl_service.tools.openenv.servers import OpenEnvServers
from prorl_service.tools.spec import OpenEnvSpec
from prorl_service.utils.budget import WorkClock
from tests.openenv.playing import group, guesses, outputs, played, served, settings
from tests.openenv.processes import guess_server, needs_openenv
from tests.parts import error_of, trajectory_of

pytestmark = pytest.mark.processes


def _is_unscored(rollout: Rollout, message: str, stage: Stage = Stage.RUN) -> None:
    assert (rollout.state, rollout.reward) == (RolloutState.FAILED, None)
    assert (error_of(rollout).kind, error_of(rollout).blame) == ("ToolServerError", Blame.SERVICE)
    assert error_of(rollout).retryable
    assert error_of(rollout).stage is stage
    assert message in error_of(rollout).message


@needs_openenv
async def test_a_server_that_is_killed_fails_its_rollouts(tmp_path: Path) -> None:
    with guess_server(tmp_path) as server:
        ask = group(4, server="guess", limits=Limits(tool_timeout_s=600))
        async with served(settings(f"guess={server.url}"), [guesses(3, 97)]) as (service, _):
            await service.submit([ask])
            await server.until_saw("step", 8)
            await asyncio.to_thread(server.kill)
            ended = [one async for one in rollouts(service, ask)]
    for rollout in ended:
        _is_unscored(rollout, "'guess' lost the session")
        assert len(outputs(rollout)) == 1
        assert len(trajectory_of(rollout).turns) == 2


@needs_openenv
async def test_rollouts_of_a_server_that_comes_back_are_retried(tmp_path: Path) -> None:
    """A step ends the server; the retry finds none, and waits for it."""
    with guess_server(tmp_path) as server:
        ask = group(server="guess", reset={"seed": 7})
        scripts = [[*guesses(3, 98)[:2], *guesses(7)]]
        options = settings(f"guess={server.url}", attempts=2, wait_s=500)
        async with served(options, scripts) as (service, _):
            await service.submit([ask])
            await asyncio.to_thread(server.until_ended)
            await asyncio.to_thread(server.start)
            [rollout] = [one async for one in rollouts(service, ask)]
    assert (rollout.reward, rollout.attempt) == (1, 2)


@needs_openenv
async def test_a_step_that_hangs_is_not_scored_and_its_session_ends(tmp_path: Path) -> None:
    with guess_server(tmp_path) as server:
        ask = group(server="guess", limits=Limits(tool_timeout_s=1))
        [rollout] = await played(settings(f"guess={server.url}"), ask, [guesses(3, 97)])
    _is_unscored(rollout, "'guess' did not answer a step within 1 s")


@needs_openenv
async def test_a_cancelled_rollout_ends_during_a_step(tmp_path: Path) -> None:
    with guess_server(tmp_path) as server:
        ask = group(server="guess", limits=Limits(tool_timeout_s=600))
        async with served(settings(f"guess={server.url}"), [guesses(3, 97)]) as (service, _):
            await service.submit([ask])
            await server.until_saw("step", 2)
            await service.executor.cancel(ask.rollout_ids())
            [rollout] = [one async for one in rollouts(service, ask)]
    assert (rollout.state, rollout.reward) == (RolloutState.CANCELLED, None)


@needs_openenv
async def test_resets_that_fail_are_told_apart(tmp_path: Path) -> None:
    with guess_server(tmp_path) as server:
        options = settings(f"guess={server.url}")
        [raised] = await played(options, group(server="guess", reset={"index": 9}), [["Hi."]])
        _is_unscored(raised, "EXECUTION_ERROR: there is no task 9", Stage.INIT)
        [over] = await played(options, group(server="guess", reset={"over": True}), [["Hi."]])
        assert (error_of(over).kind, error_of(over).blame) == ("TaskError", Blame.TASK)


@needs_openenv
async def test_a_task_can_only_choose_among_servers_and_modes(tmp_path: Path) -> None:
    with guess_server(tmp_path) as server:
        async with served(settings(f"guess={server.url}"), [["Hi."]]) as (service, _):
            with pytest.raises(InvalidRequest, match="no OpenEnv server 'http://evil'") as caught:
                await service.submit([group(server="http://evil")])
            assert "this service has: guess" in caught.value.hint
            with pytest.raises(InvalidRequest, match="no tools of mode 'mcp'"):
                await service.submit([group(server="guess", mode="mcp")])
            with pytest.raises(InvalidRequest, match="url: Extra inputs are not permitted"):
                await service.submit([group(server="guess", url="http://evil")])


# --- servers that are none ----------------------------------------------------------------------

ACTION = {"type": "object", "properties": {"text": {"type": "string"}}}
START = {"observation": {"text": "go"}, "done": False}


class Pretender:
    """A server with OpenEnv's routes; `answers` are the messages of its sessions, in order."""

    def __init__(self, *answers: str, action: object = ACTION) -> None:
        self.keys: list[str | None] = []
        self._answers = answers
        self._action = action

    async def _schema(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization"))
        return web.json_response({"action": self._action})

    async def _mcp(self, request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no tools today"}})

    async def _ws(self, request: web.Request) -> web.WebSocketResponse:
        self.keys.append(request.headers.get("Authorization"))
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for answer in self._answers:
            await socket.receive()
            await socket.send_str(answer)
        await socket.close()
        return socket

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_get("/schema", self._schema)
        app.router.add_post("/mcp", self._mcp)
        app.router.add_get("/ws", self._ws)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def _message(kind: str, data: object) -> str:
    return json.dumps({"type": kind, "data": data})


async def _pretended(*answers: str) -> Rollout:
    """Plays one rollout, which takes a step."""
    async with Pretender(*answers).served() as url:
        replies: list[Reply] = [call("step", text="hi"), "Done."]
        [rollout] = await played(settings(f"it={url}"), group(server="it"), [replies])
    return rollout


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        (_message("state", {}), "a message of type 'state'"),
        (_message("observation", {"observation": {}}), "done: Field required"),
        (_message("observation", START | {"reward": "much"}), "reward: Input should be"),
    ],
)
async def test_an_answer_against_the_protocol_is_no_reward(answer: str, problem: str) -> None:
    rollout = await _pretended(_message("observation", START), answer)
    assert rollout.reward is None
    assert not error_of(rollout).retryable
    assert f"'it' broke the protocol: {problem}" in error_of(rollout).message


async def test_a_reward_that_is_not_finite_is_no_reward() -> None:
    step = START | {"reward": float("nan")}
    rollout = await _pretended(_message("observation", START), _message("observation", step))
    assert rollout.reward is None
    assert error_of(rollout).blame is Blame.EVALUATOR


async def test_an_answer_that_is_too_large_is_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_ANSWER_BYTES", 2**16)
    flood = START | {"observation": "x" * 2**17}
    rollout = await _pretended(_message("observation", START), _message("observation", flood))
    _is_unscored(rollout, "message too big")


@pytest.mark.parametrize("code", ["SESSION_ERROR", "FACTORY_ERROR", "UNKNOWN_TYPE"])
async def test_a_session_that_breaks_is_no_reward(code: str) -> None:
    refusal = _message("error", {"code": code, "message": "out of order"})
    rollout = await _pretended(_message("observation", START), refusal)
    _is_unscored(rollout, f"answered {code}: out of order")


async def test_an_observation_that_fills_the_context_is_the_tasks_fault() -> None:
    start = START | {"observation": "x" * CONTEXT_TOKENS}
    rollout = await _pretended(_message("observation", start))
    assert (error_of(rollout).kind, error_of(rollout).blame) == ("TaskError", Blame.TASK)
    assert "with the first observation" in error_of(rollout).message


async def test_a_refused_reset_is_the_tasks_fault() -> None:
    errors = [{"loc": ["seed"], "msg": "Input should be a valid integer"}]
    refusal = {"code": "VALIDATION_ERROR", "message": "Invalid message", "errors": errors}
    rollout = await _pretended(_message("error", refusal))
    assert (error_of(rollout).kind, error_of(rollout).retryable) == ("TaskError", False)
    assert "refuses the reset: seed: Input should be a valid integer" in error_of(rollout).message


async def test_a_server_gets_its_key_on_every_route() -> None:
    pretender = Pretender(_message("observation", START))
    async with pretender.served() as url:
        spec = OpenEnvSpec("it", url, key="the-key")
        async with (
            OpenEnvServers([spec]) as servers,
            servers["it"].session({}, clock=WorkClock(), timeout_s=10),
        ):
            pass
    assert pretender.keys == ["Bearer the-key"] * 2
    assert "the-key" not in repr(spec)


async def test_a_server_that_cannot_be_used_is_reported_at_the_start() -> None:
    away = OpenEnvSpec("it", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ProRLError, match="'it' cannot be used"):
        await OpenEnvServers([away]).__aenter__()
    async with Pretender().served() as url:
        with pytest.raises(ProRLError, match="/schema answers HTTP status 404"):
            await OpenEnvServers([OpenEnvSpec("it", f"{url}/elsewhere")]).__aenter__()
    calls: object = {"properties": {"type": {}, "tool_name": {}, "arguments": {}}}
    async with Pretender(action=calls).served() as url:
        with pytest.raises(ProRLError, match=r"does not list its tools: .*no tools today"):
            await OpenEnvServers([OpenEnvSpec("it", url)]).__aenter__()
