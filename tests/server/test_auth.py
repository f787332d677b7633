"""Access to the control plane, and the places where its token must not appear."""

import logging
import os
from pathlib import Path

import httpx
import pytest

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.errors import ProRLError
from prorl_service.net.credentials import TOKEN_VARIABLE, take_token
from prorl_service.schemas import BackendSpec, Group, RolloutState
from prorl_service.testing import StubEngine
from tests.server.application import Settings, connected, group, serving

TOKEN = "a-token-of-some-length"


def settings(engine: StubEngine) -> Settings:
    return Settings(backends=(BackendSpec(url=engine.url),), sandbox="bubblewrap", token=TOKEN)


@pytest.mark.processes
@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer"]
)
async def test_a_request_without_the_token_learns_nothing(
    engine: StubEngine, given: str | None
) -> None:
    async with (
        serving(settings(engine)) as url,
        httpx.AsyncClient(base_url=url, headers={"Authorization": given} if given else {}) as http,
    ):
        for method, path in (
            ("GET", "/v1/status"),
            ("GET", "/metrics"),
            ("GET", "/status"),
            ("POST", "/v1/rollouts"),
            ("POST", "/process"),
            ("PUT", "/v1/weights"),
            ("GET", "/v1/nowhere"),
        ):
            answer = await http.request(method, path)
            assert answer.status_code == 401, path
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert answer.json()["error"]["hint"]
        assert (await http.get("/health")).json() == {"status": "ok"}
        assert (await http.get("/openapi.json")).is_success


@pytest.mark.processes
async def test_rollouts_run_with_the_token_and_it_is_shown_nowhere(
    engine: StubEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    async with serving(settings(engine)) as url, AsyncRolloutClient(url) as client:
        monkeypatch.delenv(TOKEN_VARIABLE)
        spying = group(n=1)
        await client.submit([spying])
        (rollout,) = await client.wait(["g.0"], timeout_s=60)
        assert rollout.state is RolloutState.DONE
        status = await client.status()
    assert TOKEN not in rollout.model_dump_json() + status.model_dump_json() + caplog.text
    assert isinstance(spying, Group)


@pytest.mark.processes
async def test_a_client_with_a_wrong_token_is_told_what_to_do(engine: StubEngine) -> None:
    async with connected(settings(engine), token="another-one") as client:
        with pytest.raises(ServiceCallError, match=TOKEN_VARIABLE) as refused:
            await client.status()
    assert refused.value.http_status == 401
    assert not refused.value.retryable


def test_a_token_is_read_from_a_file_or_taken_out_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert take_token(tmp_path / "token", "0.0.0.0") == TOKEN
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert take_token(None, "0.0.0.0") == TOKEN
    assert TOKEN_VARIABLE not in os.environ


def test_a_service_without_a_token_is_for_loopback_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    for host in ("127.0.0.1", "::1", "localhost"):
        assert take_token(None, host, is_off=True) is None
    for host in ("0.0.0.0", "::", "node17", "10.0.0.1"):
        with pytest.raises(ProRLError, match="reached by others"):
            take_token(None, host, is_off=True)
    with pytest.raises(ProRLError, match="contradict"):
        take_token(tmp_path / "token", "localhost", is_off=True)


@pytest.mark.parametrize(
    "content", ["", "short", "with a space in the middle", "ümläute-und-mehr-davon"]
)
def test_text_that_cannot_be_a_token_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(ProRLError, match="token"):
        take_token(tmp_path / "token", "127.0.0.1")
    with pytest.raises(ProRLError, match="cannot be read"):
        take_token(tmp_path / "none", "127.0.0.1")
