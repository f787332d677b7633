"""Keys of engines: each is sent to its own engine, and shown nowhere else."""

import asyncio
import logging
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from pydantic import ValidationError

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.net.credentials import authorization
from prorl_service.schemas import BackendSpec, BackendState, RolloutState
from prorl_service.testing import StubEngine
from tests.faults.processes import WAIT_S, group, ids_of, service, stub_engine
from tests.front.conftest import service as plain_service
from tests.programs import prorl
from tests.server.application import Settings, serving
from tests.server.scored_agent import SCORED, scored
from tests.trainers import async_trainer, trainer

KEY = "sk-engine-4711-secret"
OTHER_KEY = "sk-engine-0815-secret"


def serve(engine: str) -> "subprocess.CompletedProcess[str]":
    return prorl("serve", "--backend", engine)


def everything_told(url: str) -> str:
    headers = authorization(url)
    paths = ("/v1/status", "/v1/backends", "/metrics", "/openapi.json", "/status")
    with httpx.Client(base_url=url, headers=headers, trust_env=False) as http:
        return "".join(http.get(path).text for path in paths)


def holders_of_the_key(directory: Path) -> list[Path]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return [path for path in files if KEY.encode() in path.read_bytes()]


@pytest.fixture
def locked_engine(tiny_model: Path) -> Iterator[StubEngine]:
    with stub_engine(tiny_model) as engine:
        engine.api_key = KEY
        yield engine


@pytest.mark.processes
@pytest.mark.parametrize("way", ["file", "environment"])
def test_the_key_of_the_operator_reaches_the_engine_alone(
    locked_engine: StubEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    options: list[str] = []
    if way == "file":
        (tmp_path / "key").write_text(f"{KEY}\n")
        options = ["--backend-key-file", str(tmp_path / "key")]
    else:
        monkeypatch.setenv("PRORL_BACKEND_KEY", KEY)
    submitted = group("g", n=2)
    with (
        service([locked_engine.url], tmp_path, *options) as running,
        trainer(running.url) as client,
    ):
        client.submit([submitted])
        client.load_weights("/shared/step-1")
        ended = client.wait(ids_of([submitted]), WAIT_S)
        told = everything_told(running.url)
        for child in psutil.Process(running.pid).children(recursive=True):
            told += str(child.environ()) + str(child.cmdline())
    assert {rollout.state for rollout in ended} == {RolloutState.DONE}
    assert locked_engine.authorizations == {f"Bearer {KEY}"}
    told += "".join(rollout.model_dump_json() for rollout in ended)
    assert KEY not in told
    assert {path.name for path in tmp_path.iterdir()} >= {"journal.sqlite", "service.log"}
    assert set(holders_of_the_key(tmp_path)) <= {tmp_path / "key"}


@pytest.fixture
async def url(chat: object) -> AsyncIterator[str]:
    async with serving(Settings(agents=(SCORED,), sandbox="process")) as address:
        yield address


async def test_an_engine_may_be_added_with_its_key(
    url: str, engine: StubEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine.api_key = KEY
    async with async_trainer(url) as client:
        with pytest.raises(ServiceCallError, match="401") as refused:
            await client.add_backend(engine.url, api_key=OTHER_KEY)
        assert "--backend-key-file" in refused.value.hint
        told = str(refused.value) + refused.value.error.model_dump_json()

        await client.add_backend(engine.url, api_key=KEY)
        (status,) = await client.backends()
        assert status.state is BackendState.HEALTHY
        await client.add_backend(engine.url, lease_s=3600)  # renews the lease and keeps the key
        submitted = scored("g", 1, 1)
        await client.submit([submitted])
        ended = await client.wait(submitted.rollout_ids(), WAIT_S)
        told += "".join(rollout.model_dump_json() for rollout in ended) + str(await client.status())
        engine.api_key = OTHER_KEY
        await client.add_backend(engine.url, api_key=OTHER_KEY)
        await client.load_weights("/shared/step-1")
    assert {rollout.state for rollout in ended} == {RolloutState.DONE}
    told += caplog.text + repr(BackendSpec(url=engine.url, api_key=KEY))
    assert KEY not in told
    assert OTHER_KEY not in told


async def test_the_key_of_one_engine_is_not_sent_to_another(
    engine: StubEngine, tiny_model: Path
) -> None:
    engine.api_key = KEY
    spec = BackendSpec(url=engine.url, api_key=KEY)
    async with (
        StubEngine(tiny_model, lambda _: [5]) as other,
        serving(Settings(backends=(spec,), sandbox="process")) as url,
        AsyncRolloutClient(url) as client,
    ):
        await client.add_backend(other.url)
        assert other.authorizations == {None}


@pytest.mark.processes
async def test_a_front_passes_the_key_to_its_services(
    engine: StubEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine.api_key = KEY
    settings = Settings(
        services=tmp_path / "services",
        agents=(SCORED,),
        backends=(BackendSpec(url=engine.url, api_key=KEY),),
        journal=tmp_path / "front.sqlite",
    )
    submitted = scored("g", 1, 1)
    with plain_service("a", tmp_path) as running:
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            await client.submit([submitted])
            ended = await client.wait(submitted.rollout_ids(), WAIT_S)
            told = str(await client.status())
        told += everything_told(running.url)
    assert {rollout.state for rollout in ended} == {RolloutState.DONE}
    assert engine.authorizations == {f"Bearer {KEY}"}
    told += "".join(rollout.model_dump_json() for rollout in ended) + caplog.text
    assert KEY not in told
    assert not holders_of_the_key(tmp_path)


@pytest.mark.processes
@pytest.mark.parametrize("address", [f"http://user:{KEY}@host:1", f"http://{KEY}@host:1"])
async def test_a_secret_in_a_url_is_refused_and_not_repeated(
    http: httpx.AsyncClient, address: str
) -> None:
    for path, body in (
        ("/v1/backends", {"url": address}),
        ("/add_llm_server", {"address": address}),
    ):
        answer = await http.post(path, json=body)
        assert answer.status_code == 422
        assert "--backend-key-file" in answer.text
        assert KEY not in answer.text
    done = await asyncio.to_thread(serve, address)
    assert done.returncode == 2
    assert done.stderr.startswith("prorl: --backend: ")
    assert "--backend-key-file" in done.stderr
    assert KEY not in done.stderr


@pytest.mark.processes
def test_a_wrong_address_of_an_engine_is_refused_in_one_line() -> None:
    for address in ("localhost:8000", "http://host:1/v1", "http://host?key=x", "ftp://host"):
        done = serve(address)
        assert done.returncode == 2
        assert done.stderr.startswith("prorl: --backend: ")
        assert done.stderr.endswith("write it as http://HOST:PORT\n")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("key", ["", "two lines", "two\nlines", "ümlaut"])
def test_a_key_that_fits_no_header_is_refused(key: str) -> None:
    with pytest.raises(ValidationError) as refused:
        BackendSpec(url="http://host:1", api_key=key)
    assert "lines" not in str(refused.value)
