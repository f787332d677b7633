"""The token of a user's services: made once, for this user alone, and sent to this machine only."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.errors import ProRLError
from prorl_service.net.credentials import (
    TOKEN_VARIABLE,
    authorization,
    make_own_token,
    own_token,
    take_key,
)
from tests.faults.processes import group, ids_of, service, stub_engine
from tests.programs import prorl

SPY = ("--agent", "tests.faults.agents:Spy")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    return tmp_path / "state" / "prorl"


def test_the_first_service_makes_the_token_and_the_others_share_it(state: Path) -> None:
    assert own_token() is None
    with ThreadPoolExecutor(8) as pool:
        tokens = {future.result() for future in [pool.submit(make_own_token) for _ in range(32)]}
    assert tokens == {own_token()}
    assert len(tokens.pop()) == 64
    assert [path.name for path in state.iterdir()] == ["token"]
    assert state.stat().st_mode & 0o777 == 0o700
    assert (state / "token").stat().st_mode & 0o777 == 0o600


def test_a_directory_that_others_may_read_is_closed(state: Path) -> None:
    state.mkdir(parents=True, mode=0o755)
    make_own_token()
    assert state.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("url", "is_sent"),
    [
        ("http://localhost:8080", True),
        ("http://127.0.0.1:8080/", True),
        ("http://127.1.2.3", True),
        ("http://[::1]:8080", True),
        ("https://localhost", True),
        ("http://node17:8080", False),
        ("http://10.0.0.1:8080", False),
        ("http://localhost.evil.example:8080", False),
        ("http://localhost@evil.example", False),
        ("http://0.0.0.0:8080", False),
    ],
)
def test_the_token_is_sent_to_this_machine_only(state: Path, url: str, is_sent: bool) -> None:
    header = {"Authorization": f"Bearer {make_own_token()}"} if is_sent else {}
    assert authorization(url) == header
    sent = RolloutClient(url)._client._http.headers.get("Authorization")
    assert sent == header.get("Authorization")


def test_a_given_token_is_sent_instead(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_own_token()
    assert authorization("http://localhost", "given") == {"Authorization": "Bearer given"}
    assert authorization("http://localhost", "") == {}
    monkeypatch.setenv(TOKEN_VARIABLE, "from-environment")
    assert authorization("http://node17") == {"Authorization": "Bearer from-environment"}
    assert authorization("http://localhost", "") == {}


@pytest.mark.processes
def test_a_file_that_others_may_read_is_refused_in_one_line(state: Path) -> None:
    token = make_own_token()
    (state / "token").chmod(0o640)
    for use in (make_own_token, lambda: RolloutClient("http://localhost:1")):
        with pytest.raises(ProRLError, match="other users may read") as refused:
            use()
        assert "--token-file" in refused.value.hint
        assert token not in str(refused.value) + refused.value.hint
    RolloutClient("http://node17:8080").close()
    done = prorl("token")
    assert done.returncode == 2
    assert done.stderr.startswith(f"prorl: other users may read the token in {state}/token\n")
    assert "Traceback" not in done.stderr


@pytest.mark.processes
def test_a_directory_that_cannot_hold_the_token_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/state")
    done = prorl("serve")
    assert done.returncode == 2
    assert "prorl: cannot store a token: " in done.stderr
    assert "--token-file" in done.stderr


def test_a_key_is_read_from_a_file_or_taken_out_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("A_KEY", "from-environment\n")
    assert take_key("A_KEY", None, "the key") == "from-environment"
    assert take_key("A_KEY", None, "the key") is None
    file = tmp_path / "key"
    with pytest.raises(ProRLError, match=str(file)):
        take_key("A_KEY", file, "the key")
    file.write_text("from-file\n")
    assert take_key("A_KEY", file, "the key") == "from-file"
    file.write_text("two words")
    with pytest.raises(ProRLError, match=r"the key has .* not valid in an HTTP header") as refused:
        take_key("A_KEY", file, "the key")
    assert "two words" not in str(refused.value)


@pytest.mark.processes
def test_a_service_asks_for_the_token_from_its_first_start(
    tiny_model: Path, tmp_path: Path, state: Path
) -> None:
    """`prorl token` prints the token, as in the README; no child, sandbox or log has it."""
    with stub_engine(tiny_model) as engine, service([engine.url], tmp_path, *SPY) as running:
        token = prorl("token").stdout.strip()
        assert token == (state / "token").read_text().strip()
        assert httpx.get(f"{running.url}/v1/status", trust_env=False).status_code == 401
        bearer = {"Authorization": f"Bearer {token}"}
        answer = httpx.get(f"{running.url}/v1/status", headers=bearer, trust_env=False)
        assert answer.status_code == 200
        with RolloutClient(running.url) as client:
            spying = group("g", n=1, command=f"env; cat {state}/token; cat /proc/[0-9]*/environ")
            spying.task.agent = "spy"
            client.submit([spying])
            (rollout,) = client.wait(ids_of([spying]), timeout_s=60)
        assert rollout.error is not None
        assert "PATH=" in rollout.error.message
        assert token not in rollout.model_dump_json()
        for child in psutil.Process(running.pid).children(recursive=True):
            assert token not in str(child.environ())
            assert token not in str(child.cmdline())
    assert token not in (tmp_path / "service.log").read_text()
    assert not os.environ.get(TOKEN_VARIABLE)


@pytest.mark.processes
def test_a_service_without_a_token_needs_an_explicit_option(tmp_path: Path, state: Path) -> None:
    options = ["--no-token", "--sandbox", "process"]
    with local.service([], log=tmp_path / "log", options=options) as running:
        assert httpx.get(f"{running.url}/v1/status", trust_env=False).status_code == 200
        named = {"Host": "rebound.example"}
        refused = httpx.get(f"{running.url}/v1/status", headers=named, trust_env=False)
        assert refused.status_code == 403
    assert not state.exists()
    done = prorl("serve", "--host", "0.0.0.0", "--no-token")
    assert done.returncode == 2
    assert "0.0.0.0 can be reached by others" in done.stderr
