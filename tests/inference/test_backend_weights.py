"""Weight updates by `Backend` of engines that refuse, fail or hang, over real HTTP."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from safetensors.torch import save_file
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from prorl_service.errors import BackendError, BackendRejected, BackendUnavailable
from prorl_service.inference.engines import handout
from prorl_service.inference.engines.http import WEIGHTS_REJECTED
from prorl_service.inference.engines.reference import OWNER
from prorl_service.inference.sources import WeightDirectory, WeightFile, WeightSource
from prorl_service.testing.loopback import Handler
from tests.inference.scripted_backend import MODELS, answers, backend_of, hang

DIRECTORY = WeightDirectory("/checkpoint")
BY_DIRECTORY = ["pause", "collective_rpc", "update_weight_version", "resume"]
OFFER = "init_weight_transfer_engine"
BY_FILE = [
    OFFER,
    "pause",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
    "update_weight_version",
    "resume",
]
FAILURES = [(400, "BadRequestError"), (500, "InternalServerError"), "hang"]


class Updates:
    """An engine's weight routes, which record their calls and fail where a test says."""

    def __init__(self, failures: Mapping[str, Any] = MappingProxyType({}), owner: str = "") -> None:
        self.called: list[str] = []
        self.bodies: dict[str, bytes] = {}
        routes = {*BY_DIRECTORY, *BY_FILE}
        self.routes = {f"/{route}": self._handler(route, failures) for route in routes}
        self.routes["/v1/models"] = answers({"data": [MODELS["data"][0] | {"owned_by": owner}]})

    def _handler(self, route: str, failures: Mapping[str, Any]) -> Handler:
        async def handler(request: Request) -> Response:
            self.called.append(route)
            self.bodies[route] = await request.body()
            failure = failures.get(route)
            if failure == "hang":
                await hang(request)
            if isinstance(failure, tuple):
                status, kind = failure
                error = {"message": "the reason", "type": kind, "param": None, "code": status}
                return JSONResponse({"error": error}, status)
            return JSONResponse({})

        return handler

    async def load(self, source: WeightSource, timeout_s: float = 10) -> None:
        async with backend_of(self.routes) as backend:
            await backend.load_weights(source, "3", timeout_s=timeout_s)


@pytest.fixture(params=[OWNER, "vllm"])
def owner(request: pytest.FixtureRequest) -> str:
    """Owner by which each class of engine is recognised."""
    return str(request.param)


@pytest.fixture
def file(tmp_path: Path) -> WeightFile:
    path = tmp_path / "weights.safetensors"
    save_file({"w": torch.ones(3)}, path)
    return WeightFile(path)


async def test_weights_are_loaded_from_a_directory_between_pause_and_resume(owner: str) -> None:
    engine = Updates(owner=owner)
    await engine.load(DIRECTORY)
    assert engine.called == BY_DIRECTORY
    assert b"/checkpoint" in engine.bodies["collective_rpc"]
    assert engine.bodies["update_weight_version"] == b'{"new_version":"3"}'


async def test_an_engine_is_offered_a_file_before_it_is_paused(
    file: WeightFile, owner: str
) -> None:
    engine = Updates(owner=owner)
    await engine.load(file)
    assert engine.called == BY_FILE
    offer = json.loads(engine.bodies[OFFER])["init_info"]
    assert (offer["path"], offer["size"]) == (str(file.path), file.path.stat().st_size)
    assert offer["shapes"] == {"w": [3]}
    assert engine.bodies["update_weight_version"] == b'{"new_version":"3"}'


async def _opened(request: Request) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Asks for the file that was offered."""
    url = urlsplit((await request.json())["init_info"]["url"])
    assert url.hostname is not None
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(f"GET {url.path} HTTP/1.1\r\n\r\n".encode())
    return reader, writer


@pytest.mark.slow
async def test_the_time_limit_on_fetching_weights_counts_silence_only(
    tmp_path: Path, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine takes three times as long as the limit."""
    monkeypatch.setattr(handout, "PART_BYTES", 2**20)
    path = tmp_path / "weights"
    save_file({"w": torch.zeros(15 * 2**20)}, path)
    received = 0

    async def fetch_slowly(request: Request) -> Response:
        nonlocal received
        reader, writer = await _opened(request)
        while piece := await reader.read(2**20):
            received += len(piece)
            await asyncio.sleep(0.1 * len(piece) / 2**20)
        writer.close()
        return JSONResponse({})

    engine = Updates(owner=owner)
    engine.routes[f"/{OFFER}"] = fetch_slowly
    await engine.load(WeightFile(path), timeout_s=2)
    assert received > path.stat().st_size
    assert engine.called[-1] == "resume"


@pytest.mark.slow
@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failure_before_the_swap_resumes_the_old_weights(
    file: WeightFile, failure: Any, owner: str
) -> None:
    engine = Updates({"pause": failure}, owner)
    with pytest.raises(BackendError):
        await engine.load(file, timeout_s=2)
    assert engine.called == [OFFER, "pause", "resume"]


@pytest.mark.parametrize("route", ["collective_rpc", "update_weights"])
async def test_refused_weights_resume_the_old_ones(
    file: WeightFile, route: str, owner: str
) -> None:
    engine = Updates({route: (400, WEIGHTS_REJECTED)}, owner)
    with pytest.raises(BackendRejected, match="the reason"):
        await engine.load(file if route == "update_weights" else DIRECTORY)
    assert engine.called[-2:] == [route, "resume"]


@pytest.mark.slow
@pytest.mark.parametrize("route", ["collective_rpc", "update_weights", "finish_weight_update"])
@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failure_during_the_swap_leaves_the_engine_paused(
    file: WeightFile, route: str, failure: Any, owner: str
) -> None:
    engine = Updates({route: failure}, owner)
    with pytest.raises(BackendError, match="lost its weights") as caught:
        await engine.load(DIRECTORY if route == "collective_rpc" else file, timeout_s=2)
    assert "restart" in caught.value.hint
    assert not caught.value.retryable
    assert "resume" not in engine.called


@pytest.mark.parametrize("route", ["pause", "update_weights", "finish_weight_update"])
async def test_an_engine_found_paused_is_not_resumed_without_new_weights(
    file: WeightFile, route: str, owner: str
) -> None:
    engine = Updates({route: (400, WEIGHTS_REJECTED)}, owner)
    engine.routes["/is_paused"] = answers({"is_paused": True})
    with pytest.raises(BackendRejected):
        await engine.load(file)
    assert "resume" not in engine.called


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, b"\2" + bytes(7) + b"{}", None])
async def test_an_engine_is_offered_whole_files_only(
    file: WeightFile, content: bytes | None, owner: str
) -> None:
    file.path.write_bytes(file.path.read_bytes()[:-1] if content is None else content)
    engine = Updates(owner=owner)
    with pytest.raises(BackendRejected, match="not a complete safetensors file"):
        await engine.load(file)
    assert engine.called == []


async def test_a_transfer_that_breaks_off_leaves_the_old_weights(
    file: WeightFile, owner: str
) -> None:
    engine = Updates(owner=owner)

    async def hang_up(request: Request) -> Response:
        """Takes the first bytes only."""
        reader, writer = await _opened(request)
        await reader.read(1)
        writer.transport.abort()
        return JSONResponse({})

    engine.routes[f"/{OFFER}"] = hang_up
    save_file({"w": torch.zeros(10_000_000)}, file.path)  # more than the kernel buffers
    with pytest.raises(BackendUnavailable, match="took no weights"):
        await engine.load(file)
    assert engine.called == []


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        ((404, "NotFoundError"), "VLLM_SERVER_DEV_MODE=1"),
        ((500, "InternalServerError"), "--weight-transfer-config"),
    ],
)
async def test_a_vllm_that_takes_no_weights_is_left_alone(
    file: WeightFile, failure: Any, advice: str
) -> None:
    engine = Updates({OFFER: failure}, "vllm")
    with pytest.raises(BackendRejected) as caught:
        await engine.load(file)
    assert advice in caught.value.hint
    assert engine.called == [OFFER]
