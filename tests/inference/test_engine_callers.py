"""Access to the reference engine: only with its key, if it has one, and never by a foreign page."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from prorl_service import local
from prorl_service.client import RolloutClient, ServiceCallError
from prorl_service.schemas import RolloutState
from tests.faults.processes import WAIT_S, group, ids_of, service
from tests.programs import prorl
from tests.trainers import trainer

pytestmark = pytest.mark.processes

KEY = "sk-reference-4711"
FOREIGN = {"Origin": "http://evil.example"}


@pytest.fixture(scope="module")
def engine(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[local.LocalProcess]:
    log = tmp_path_factory.mktemp("engine") / "engine.log"
    with local.engine(tiny_model, log=log, options=["--allow-host", "engine.example"]) as process:
        yield process


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("key") / "key"
    file.write_text(f"{KEY}\n")
    return file


@pytest.fixture(scope="module")
def locked(
    tiny_model: Path, key_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[local.LocalProcess]:
    log = tmp_path_factory.mktemp("locked") / "engine.log"
    with local.engine(tiny_model, log=log, options=["--api-key-file", str(key_file)]) as process:
        yield process


def status(url: str, method: str, path: str, **headers: str) -> int:
    with httpx.Client(base_url=url, trust_env=False) as http:
        return http.request(method, path, headers=headers).status_code


@pytest.mark.parametrize("path", ["/pause", "/start_weight_update", "/update_weights"])
def test_a_page_of_another_site_reaches_no_route(engine: local.LocalProcess, path: str) -> None:
    assert status(engine.url, "POST", path, **FOREIGN) == 403
    assert status(engine.url, "POST", path, Host="evil.example") == 403
    assert httpx.get(f"{engine.url}/is_paused", trust_env=False).json() == {"is_paused": False}


def test_a_refusal_says_why_in_the_engines_own_format(engine: local.LocalProcess) -> None:
    refused = httpx.post(f"{engine.url}/pause", headers=FOREIGN, trust_env=False).json()["error"]
    assert (refused["type"], refused["code"]) == ("Forbidden", 403)
    assert "evil.example" in refused["message"]
    assert "--allow-host" in refused["message"]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "engine.example"])
def test_the_engine_answers_to_loopback_and_to_allowed_names(
    engine: local.LocalProcess, name: str
) -> None:
    assert status(engine.url, "GET", "/v1/models", Host=name) == 200


@pytest.mark.parametrize("given", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}])
def test_only_health_is_open_to_all(locked: local.LocalProcess, given: dict[str, str]) -> None:
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/docs"),
        ("POST", "/pause"),
        ("POST", "/inference/v1/generate"),
    ):
        assert status(locked.url, method, path, **given) == 401
    assert status(locked.url, "GET", "/health", **given) == 200


def test_the_key_allows_any_host_name_but_no_foreign_pages(
    locked: local.LocalProcess,
) -> None:
    bearer = {"Authorization": f"Bearer {KEY}"}
    assert status(locked.url, "GET", "/v1/models", Host="node17", **bearer) == 200
    assert status(locked.url, "GET", "/v1/models", **FOREIGN, **bearer) == 403


def test_a_service_with_the_key_uses_it(
    locked: local.LocalProcess, key_file: Path, tmp_path: Path, tiny_model: Path
) -> None:
    submitted = group("g", n=2)
    options = ("--backend-key-file", str(key_file))
    with (
        service([locked.url], tmp_path, *options) as running,
        trainer(running.url) as client,
    ):
        client.submit([submitted])
        client.load_weights(str(tiny_model))
        ended = client.wait(ids_of([submitted]), WAIT_S)
    assert {rollout.state for rollout in ended} == {RolloutState.DONE}
    assert KEY not in locked.log.read_text()


def test_a_service_without_the_key_is_refused_with_the_option_for_it(
    locked: local.LocalProcess, tmp_path: Path
) -> None:
    with (
        service([], tmp_path) as running,
        RolloutClient(running.url) as client,
        pytest.raises(ServiceCallError, match="401") as refused,
    ):
        client.add_backend(locked.url)
    assert "--backend-key-file" in refused.value.hint


def test_a_key_from_the_environment_is_not_passed_to_children(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRORL_ENGINE_KEY", KEY)
    with local.engine(tiny_model, log=tmp_path / "engine.log") as process:
        assert status(process.url, "GET", "/v1/models") == 401
        assert status(process.url, "GET", "/v1/models", Authorization=f"Bearer {KEY}") == 200
        children = psutil.Process(process.pid).children(recursive=True)
        assert not any(KEY in str(child.environ()) for child in children)


def test_an_empty_key_file_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("\n")
    done = prorl("engine", "--model", tiny_model, "--api-key-file", tmp_path / "key")
    assert done.returncode != 0
    assert "key is empty" in done.stderr
    assert len(done.stderr.splitlines()) == 1
