"""Named tokens: who may do what, what names are good for, and when they end."""

import asyncio
import logging
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.errors import ProRLError
from prorl_service.net.callers import Caller, Role, TokenCallers, TokenFile
from prorl_service.net.credentials import tokens_file
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.schemas import BackendSpec, RolloutState
from prorl_service.schemas.views import GroupQuery, RolloutQuery
from prorl_service.server.access import ServiceAccess
from prorl_service.server.app import interface
from prorl_service.testing import StubEngine
from tests.server.application import Settings, group, serving

pytestmark = pytest.mark.processes
OWN = "the-token-of-the-owner"


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenFile:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tokens_file()
    assert path is not None
    return TokenFile(path)


@pytest.fixture
async def url(engine: StubEngine, tokens: TokenFile) -> AsyncIterator[str]:
    engine.latency_s = 600
    settings = Settings(
        backends=(BackendSpec(url=engine.url),),
        sandbox="bubblewrap",
        token=OWN,
        pipeline=PipelineConfig(init_workers=1),
        max_unfinished_per_client=4,
    )
    async with serving(settings) as address:
        yield address


async def refused(client: AsyncRolloutClient, status: int, *rollout_ids: str) -> str:
    with pytest.raises(ServiceCallError) as caught:
        await client.cancel(list(rollout_ids))
    assert caught.value.http_status == status
    return caught.value.error.message


async def test_each_ends_its_own_rollouts_only(
    url: str, tokens: TokenFile, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    alice, bob, eve = (tokens.add(*one) for one in (
        ("alice", Role.SUBMIT), ("bob", Role.SUBMIT), ("eve", Role.READ),
    ))  # fmt: skip
    async with (
        AsyncRolloutClient(url, token=alice) as of_alice,
        AsyncRolloutClient(url, token=bob) as of_bob,
        AsyncRolloutClient(url, token=eve) as of_eve,
        AsyncRolloutClient(url, token=OWN) as of_owner,
    ):
        disguised = group("a").model_copy(update={"client": "bob"})
        await of_alice.submit([disguised])
        await of_bob.submit([group("b")])
        with pytest.raises(ServiceCallError, match="role read"):
            await of_eve.submit([group("e")])
        assert {row.group_id: row.client for row in (await of_eve.groups()).groups} == {
            "a": "alice",
            "b": "bob",
        }
        mine = await of_eve.rollouts(RolloutQuery(client="alice"))
        assert [row.rollout_id for row in mine.rollouts] == ["a.0"]
        assert "is of alice, not of bob" in await refused(of_bob, 403, "b.0", "a.0")
        await refused(of_eve, 403, "a.0")
        with pytest.raises(ServiceCallError):
            await of_bob.acknowledge(["a"])
        for call in (of_bob.load_weights("/nowhere"), of_bob.remove_backend("x")):
            with pytest.raises(ServiceCallError, match=r"role submit|needs a client"):
                await call
        (ended,) = await of_alice.cancel(["a.0"])
        assert ended.state is RolloutState.CANCELLED
        await of_owner.cancel(["b.0"])
        shelved = (await of_eve.groups(GroupQuery(client="alice"))).groups
        assert [row.group_id for row in shelved] == ["a"]
    said = [record.getMessage() for record in caplog.records]
    done = [line for line in said if " cancels " in line]
    assert done == ["alice cancels 1 rollouts", "the owner cancels 1 rollouts"]
    assert {
        "alice submitted 1 rollouts, the first a.0",
        "eve was refused POST /v1/rollouts",
    } <= set(said)
    assert not any(secret in line for line in said for secret in (alice, bob, eve))


async def test_a_client_has_a_share_of_the_unfinished(url: str, tokens: TokenFile) -> None:
    alice = tokens.add("alice", Role.SUBMIT)
    async with (
        AsyncRolloutClient(url, token=alice, retry_s=0) as of_alice,
        AsyncRolloutClient(url, token=OWN, retry_s=0) as of_owner,
    ):
        await of_alice.submit([group("a", n=3)])
        with pytest.raises(ServiceCallError, match="3 rollouts of alice are unfinished") as full:
            await of_alice.submit([group("b", n=2)])
        with pytest.raises(ServiceCallError, match="5 rollouts are more than may be") as never:
            await of_alice.submit([group("b", n=5)])
        assert [one.value.error.retryable for one in (full, never)] == [True, False]
        await of_owner.submit([group("c", n=4)])
        await of_alice.submit([group("d")])
        outcomes = await asyncio.gather(
            *(of_owner.submit([group(f"e{number}")]) for number in range(8)), return_exceptions=True
        )
        assert all(isinstance(one, ServiceCallError) for one in outcomes)
        await of_owner.cancel([f"c.{index}" for index in range(4)])
        outcomes = await asyncio.gather(
            *(of_owner.submit([group(f"f{number}")]) for number in range(8)), return_exceptions=True
        )
        assert sum(isinstance(one, list) for one in outcomes) == 4


async def test_a_removed_token_is_refused_immediately(
    url: str, tokens: TokenFile, caplog: pytest.LogCaptureFixture
) -> None:
    async def status(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=url, headers=headers) as http:
            return (await http.get("/v1/status")).status_code

    alice = tokens.add("alice", Role.READ)
    assert await status(alice) == 200
    tokens.remove("alice")
    assert await status(alice) == 401
    again = tokens.add("alice", Role.READ)
    assert [await status(alice), await status(again), await status(OWN)] == [401, 200, 200]
    path = tokens_file()
    assert path is not None
    await asyncio.to_thread(path.write_text, "{not json")
    assert [await status(again), await status(again), await status(OWN)] == [401, 401, 200]
    [said] = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert f"the tokens in {path} cannot be read: Invalid JSON" in said


async def test_a_stream_ends_when_its_token_is_removed(url: str, tokens: TokenFile) -> None:
    alice = tokens.add("alice", Role.READ)
    headers = {"Authorization": f"Bearer {alice}"}
    async with (
        AsyncRolloutClient(url, token=OWN) as of_owner,
        httpx.AsyncClient(base_url=url, headers=headers) as http,
        http.stream("GET", "/v1/events") as events,
    ):
        lines = events.aiter_lines()
        await anext(lines)
        tokens.remove("alice")
        await of_owner.submit([group("a")])
        assert "a.0" not in "".join([line async for line in lines])


def test_each_route_is_open_to_few() -> None:
    """A route that is added is closed to those who submit unless it is named."""
    allowed, refusal = set(), ServiceAccess().refusal
    for path, methods in interface().openapi()["paths"].items():
        for method in methods:
            if refusal(Caller("eve", Role.READ), method.upper(), path) is None:
                assert method == "get" or path in ("/v1/tasks/check", "/v1/rollouts/stream")
                assert not path.endswith("/gateway")
            elif refusal(Caller("bob", Role.SUBMIT), method.upper(), path) is None:
                allowed.add((method, path))
            assert refusal(Caller("ada", Role.ADMIN), method.upper(), path) is None
    assert allowed == {
        ("post", "/v1/rollouts"),
        ("post", "/v1/rollouts/cancel"),
        ("get", "/v1/rollouts/{rollout_id}/gateway"),
        ("post", "/v1/rollouts/{rollout_id}/gateway/end"),
        ("post", "/v1/groups/acknowledge"),
    }


def test_the_file_has_no_token_and_is_its_owners(tokens: TokenFile) -> None:
    token = tokens.add("alice", Role.ADMIN)
    path = tokens_file()
    assert path is not None
    assert token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ProRLError, match="there is a token of alice already"):
        tokens.add("alice", Role.READ)
    for name in ("", "a b", "../x", "x" * 61):
        with pytest.raises(ProRLError, match="a name is letters"):
            tokens.add(name, Role.READ)
    with pytest.raises(ProRLError, match="there is no token of bob"):
        tokens.remove("bob")


@given(st.text())
def test_no_other_text_is_a_token(text: str) -> None:
    assert TokenCallers(OWN).find(text) is None or text == OWN
