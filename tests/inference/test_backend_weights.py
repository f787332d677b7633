"""Weight updates by `Backend` of engines that refuse, fail or hang, over real HTTP."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from aiohttp import web
from safetensors.torch import save_file
from yarl import URL

from prorl_service.errors import BackendError, BackendRejected, BackendUnavailable
from prorl_service.inference.answers import REFERENCE_ENGINE, WEIGHTS_REJECTED
from prorl_service.inference.transfer.ways import WeightDirectory, WeightFile
from tests.inference.scripted_backend import MODELS, Handler, answers, backend_of, hang


class Updates:
    """An engine's weight routes, which record their calls and fail where a test says."""

    ROUTES = (
        "init_weight_transfer_engine",
        "pause",
        "start_weight_update",
        "open_weights",
        "update_weights",
        "finish_weight_update",
        "collective_rpc",
        "update_weight_version",
        "resume",
    )

    def __init__(
        self, failures: Mapping[str, Any] = MappingProxyType({}), *, owner: str = REFERENCE_ENGINE
    ) -> None:
        self.called: list[str] = []
        self.opens_files = False
        self.bodies: dict[str, bytes] = {}
        self.routes = {f"/{route}": self._handler(route, failures) for route in self.ROUTES}
        model = MODELS["data"][0] | {"owned_by": owner}
        self.routes["/v1/models"] = answers({"data": [model]})

    def _handler(self, route: str, failures: Mapping[str, Any]) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            self.called.append(route)
            self.bodies[route] = await request.read()
            failure = failures.get(route)
            if failure == "hang":
                await hang(request)
            if isinstance(failure, tuple):
                status, kind = failure
                error = {"message": "the reason", "type": kind, "param": None, "code": status}
                return web.json_response({"error": error}, status=status)
            return web.json_response({"is_opened": self.opens_files})

        return handler


DIRECTORY = WeightDirectory("/checkpoint")
BY_DIRECTORY = ["pause", "collective_rpc", "update_weight_version", "resume"]
BY_STREAM = [
    "pause",
    "start_weight_update",
    "open_weights",
    "update_weights",
    "finish_weight_update",
    "resume",
]
BY_FETCH = [
    "init_weight_transfer_engine",
    "pause",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
    "update_weight_version",
    "resume",
]


@pytest.fixture
def streamed(tmp_path: Path) -> WeightFile:
    path = tmp_path / "weights"
    path.write_bytes(b"tensors" * 100_000)
    return WeightFile(path)


async def test_weights_are_loaded_from_a_directory_between_pause_and_resume() -> None:
    engine = Updates()
    async with backend_of(engine.routes) as backend:
        await backend.load_weights(DIRECTORY, 3, timeout_s=10)
    assert engine.called == BY_DIRECTORY
    assert b"/checkpoint" in engine.bodies["collective_rpc"]
    assert engine.bodies["update_weight_version"] == b'{"new_version":"3"}'


async def test_weights_are_streamed_between_pause_and_resume(streamed: WeightFile) -> None:
    engine = Updates()
    async with backend_of(engine.routes) as backend:
        await backend.load_weights(streamed, 3, timeout_s=10)
    assert engine.called == BY_STREAM
    assert engine.bodies["update_weights"] == streamed.path.read_bytes()
    assert engine.bodies["finish_weight_update"] == b'{"weight_version":"3"}'


async def test_a_file_that_the_engine_can_open_is_not_sent(streamed: WeightFile) -> None:
    engine = Updates()
    engine.opens_files = True
    async with backend_of(engine.routes) as backend:
        await backend.load_weights(streamed, 3, timeout_s=10)
    assert engine.called == [route for route in BY_STREAM if route != "update_weights"]
    offer = json.loads(engine.bodies["open_weights"])
    assert offer == {"path": str(streamed.path), "size": streamed.path.stat().st_size}


@pytest.mark.slow
async def test_the_time_limit_on_sending_weights_counts_silence_only(tmp_path: Path) -> None:
    """The engine takes three times as long as the limit."""
    path = tmp_path / "weights"
    path.write_bytes(bytes(60 * 2**20))
    received = 0

    async def receive_slowly(request: web.Request) -> web.StreamResponse:
        nonlocal received
        while piece := await request.content.read(2**20):
            received += len(piece)
            await asyncio.sleep(0.1 * len(piece) / 2**20)
        return web.json_response({})

    engine = Updates()
    engine.routes["/update_weights"] = receive_slowly
    async with backend_of(engine.routes) as backend:
        await backend.load_weights(WeightFile(path), 3, timeout_s=2)
    assert received == path.stat().st_size
    assert engine.called[-1] == "resume"


@pytest.mark.slow
@pytest.mark.parametrize("route", ["start_weight_update", "update_weights"])
@pytest.mark.parametrize(
    "failure", [(400, "BadRequestError"), (500, "InternalServerError"), "hang"]
)
async def test_a_failure_before_the_swap_resumes_the_old_weights(
    streamed: WeightFile, route: str, failure: Any
) -> None:
    engine = Updates({route: failure})
    async with backend_of(engine.routes) as backend:
        with pytest.raises(BackendError):
            await backend.load_weights(streamed, 3, timeout_s=2)
    assert engine.called == [*BY_STREAM[: BY_STREAM.index(route) + 1], "resume"]


@pytest.mark.parametrize("route", ["collective_rpc", "finish_weight_update"])
async def test_refused_weights_resume_the_old_ones(streamed: WeightFile, route: str) -> None:
    engine = Updates({route: (400, WEIGHTS_REJECTED)})
    async with backend_of(engine.routes) as backend:
        source = DIRECTORY if route == "collective_rpc" else streamed
        with pytest.raises(BackendRejected, match="the reason"):
            await backend.load_weights(source, 3, timeout_s=10)
    assert engine.called[-2:] == [route, "resume"]


@pytest.mark.slow
@pytest.mark.parametrize("route", ["collective_rpc", "finish_weight_update"])
@pytest.mark.parametrize(
    "failure", [(400, "BadRequestError"), (500, "InternalServerError"), "hang"]
)
async def test_a_failure_during_the_swap_leaves_the_engine_paused(
    streamed: WeightFile, route: str, failure: Any
) -> None:
    engine = Updates({route: failure})
    async with backend_of(engine.routes) as backend:
        source = DIRECTORY if route == "collective_rpc" else streamed
        with pytest.raises(BackendError, match="lost its weights") as caught:
            await backend.load_weights(source, 3, timeout_s=2)
    assert "restart" in caught.value.hint
    assert not caught.value.retryable
    assert "resume" not in engine.called


@pytest.mark.parametrize("route", ["pause", "update_weights", "finish_weight_update"])
async def test_an_engine_found_paused_is_not_resumed_without_new_weights(
    streamed: WeightFile, route: str
) -> None:
    engine = Updates({route: (400, WEIGHTS_REJECTED)})
    engine.routes["/is_paused"] = answers({"is_paused": True})
    async with backend_of(engine.routes) as backend:
        with pytest.raises(BackendRejected):
            await backend.load_weights(streamed, 3, timeout_s=10)
    assert "resume" not in engine.called


# --- vLLM, which fetches ------------------------------------------------------------------------


@pytest.fixture
def fetched(tmp_path: Path) -> WeightFile:
    path = tmp_path / "weights.safetensors"
    save_file({"w": torch.ones(3)}, path)
    return WeightFile(path)


async def test_vllm_is_offered_the_weights_before_it_is_paused(fetched: WeightFile) -> None:
    engine = Updates(owner="vllm")
    async with backend_of(engine.routes) as backend:
        await backend.load_weights(fetched, 3, timeout_s=10)
    assert engine.called == BY_FETCH
    offer = json.loads(engine.bodies["init_weight_transfer_engine"])["init_info"]
    assert offer["shapes"] == {"w": [3]}
    assert (offer["path"], offer["size"]) == (str(fetched.path), fetched.path.stat().st_size)
    assert engine.bodies["update_weight_version"] == b'{"new_version":"3"}'


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        ((404, "NotFoundError"), "VLLM_SERVER_DEV_MODE=1"),
        ((500, "InternalServerError"), "--weight-transfer-config"),
    ],
)
async def test_a_vllm_that_takes_no_weights_is_left_alone(
    fetched: WeightFile, failure: Any, advice: str
) -> None:
    engine = Updates({"init_weight_transfer_engine": failure}, owner="vllm")
    async with backend_of(engine.routes) as backend:
        with pytest.raises(BackendRejected) as caught:
            await backend.load_weights(fetched, 3, timeout_s=10)
    assert advice in caught.value.hint
    assert engine.called == ["init_weight_transfer_engine"]


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, b"\2" + bytes(7) + b"{}", None])
async def test_vllm_is_offered_whole_files_only(fetched: WeightFile, content: bytes | None) -> None:
    fetched.path.write_bytes(fetched.path.read_bytes()[:-1] if content is None else content)
    engine = Updates(owner="vllm")
    async with backend_of(engine.routes) as backend:
        with pytest.raises(BackendRejected, match="not a complete safetensors file"):
            await backend.load_weights(fetched, 3, timeout_s=10)
    assert engine.called == []


async def test_a_transfer_that_breaks_off_leaves_the_old_weights(fetched: WeightFile) -> None:
    engine = Updates(owner="vllm")

    async def hang_up(request: web.Request) -> web.StreamResponse:
        """Takes the first bytes only."""
        url = URL((await request.json())["init_info"]["url"])
        assert url.host is not None
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(f"GET {url.path} HTTP/1.1\r\n\r\n".encode())
        await reader.read(1)
        writer.transport.abort()
        return web.json_response({})

    engine.routes["/init_weight_transfer_engine"] = hang_up
    save_file({"w": torch.zeros(10_000_000)}, fetched.path)  # more than the kernel buffers
    async with backend_of(engine.routes) as backend:
        with pytest.raises(BackendUnavailable, match="took no weights"):
            await backend.load_weights(fetched, 3, timeout_s=10)
    assert engine.called == []
