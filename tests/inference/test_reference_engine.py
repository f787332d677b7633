"""Behaviour of the reference engine alone: it checks weights before it touches its own."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MambaConfig, MambaForCausalLM

from prorl_service import local
from prorl_service.errors import BackendError, BackendRejected, ProRLError
from prorl_service.inference.backend import Backend
from prorl_service.inference.engines.handout import offered
from prorl_service.inference.reference_engine import serve
from prorl_service.inference.reference_engine.model import PackedModel
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.inference.sources import WeightDirectory, WeightFile, WeightSource
from tests.inference.contract import (
    GREEDY,
    TIMEOUT_S,
    TOLERANCE,
    Engine,
    ask,
    endless_prompt,
    error,
    prompt,
)

pytestmark = pytest.mark.processes

Tensors = dict[str, torch.Tensor]
OFFER = "/init_weight_transfer_engine"
EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    checkpoint = tmp_path_factory.mktemp("checkpoint")
    build_tiny_model(checkpoint, tie_word_embeddings=request.param)
    with local.engine(checkpoint, log=checkpoint / "log") as process:
        yield Engine(process.url, checkpoint)


@pytest.fixture
async def backend(engine: Engine) -> AsyncIterator[Backend]:
    async with engine.backend() as backend:
        yield backend


@pytest.fixture
def tied(engine: Engine) -> bool:
    return bool(json.loads((engine.checkpoint / "config.json").read_text())["tie_word_embeddings"])


@pytest.fixture
def new(engine: Engine, tied: bool, tmp_path: Path) -> Path:
    """Another checkpoint of the same architecture."""
    build_tiny_model(tmp_path / "new", tie_word_embeddings=tied, seed=engine.version + 1)
    return tmp_path / "new"


def rewrite(checkpoint: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    change(tensors)
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})


def source_of(checkpoint: Path, way: str) -> WeightSource:
    if way == "directory":
        return WeightDirectory(str(checkpoint))
    return WeightFile(checkpoint / "model.safetensors")


async def test_other_floating_point_types_are_converted(
    engine: Engine, backend: Backend, new: Path
) -> None:
    rewrite(new, lambda t: t.update({name: x.bfloat16() for name, x in t.items()}))
    await engine.load(backend, source_of(new, "file"), new)
    assert error(new, prompt(30), await ask(backend, prompt(30))) < TOLERANCE


async def test_the_head_may_come_with_tied_embeddings(
    engine: Engine, backend: Backend, new: Path
) -> None:
    rewrite(new, lambda t: t.update({HEAD: t.get(HEAD, t[EMBEDDING]).clone()}))
    await engine.load(backend, source_of(new, "file"), new)
    assert error(new, prompt(30), await ask(backend, prompt(30))) < TOLERANCE


BAD_CHANGES: dict[str, Callable[[Tensors], object]] = {
    "is missing": lambda t: t.pop(NORM),
    "not a tensor of the model": lambda t: t.update(extra=torch.zeros(1)),
    "not \\[64\\]": lambda t: t.update({NORM: torch.zeros(65)}),
    "not a floating-point type": lambda t: t.update({NORM: torch.zeros(64, dtype=torch.int8)}),
    "and 15 more": lambda t: [t.pop(name) for name in list(t)[:20]],
}


@pytest.mark.parametrize("way", ["directory", "file"])
@pytest.mark.parametrize("complaint", BAD_CHANGES)
async def test_unfit_weights_leave_the_old_ones_serving(
    engine: Engine, backend: Backend, new: Path, complaint: str, way: str
) -> None:
    rewrite(new, BAD_CHANGES[complaint])
    await _is_refused(engine, backend, source_of(new, way), complaint)


async def test_tied_weights_that_differ_are_refused(
    engine: Engine, backend: Backend, new: Path, tied: bool
) -> None:
    rewrite(new, lambda t: t.update({HEAD: t[EMBEDDING] + 1}))
    if tied:
        await _is_refused(engine, backend, source_of(new, "file"), "ties them")
    else:
        await engine.load(backend, source_of(new, "file"), new)


async def test_files_that_are_no_checkpoint_are_refused(
    engine: Engine, backend: Backend, new: Path, tmp_path: Path
) -> None:
    whole = (new / "model.safetensors").read_bytes()
    for index, content in enumerate([b"", b"garbage" * 100, whole[:-4]]):
        file = tmp_path / f"{index}.safetensors"
        file.write_bytes(content)
        await _is_refused(engine, backend, WeightFile(file), "not a complete safetensors file")
        await _is_refused(engine, backend, WeightDirectory(str(tmp_path)), "cannot read")
    nowhere = WeightDirectory(str(tmp_path / "nowhere"))
    await _is_refused(engine, backend, nowhere, "holds no")


async def _is_refused(
    engine: Engine, backend: Backend, source: WeightSource, complaint: str
) -> None:
    """Asserts that the engine refuses `source`, and that a call in flight continues."""
    call = asyncio.create_task(ask(backend, prompt(9), max_tokens=60))
    with pytest.raises(BackendRejected, match=complaint):
        await backend.load_weights(source, str(engine.version + 1), timeout_s=TIMEOUT_S)
    answer = await call
    assert error(engine.checkpoint, prompt(9), answer) < TOLERANCE
    assert set(answer.policy_versions) == {engine.version}


async def test_weights_must_be_offered_before_they_are_loaded(engine: Engine) -> None:
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as http:
        response = await http.post("/update_weights")
    assert response.status_code == 400
    assert "init_weight_transfer_engine" in response.json()["error"]["message"]


async def test_offers_of_files_that_cannot_be_fetched_are_refused(
    engine: Engine, backend: Backend, new: Path
) -> None:
    async with offered(new / "model.safetensors", engine.url, lambda: None) as offer:
        info = {"path": "/nowhere", "size": offer.size, "url": offer.url}
        for wrong in ({"size": offer.size + 1}, {"url": f"{offer.url}x"}, {"url": "file:///x"}):
            with pytest.raises(BackendRejected):
                await backend.engine.http.tell(OFFER, {"init_info": info | wrong})


async def test_waiting_pauses_let_calls_end_and_hold_new_ones(
    engine: Engine, backend: Backend
) -> None:
    asked = await endless_prompt(backend)
    begun = asyncio.create_task(ask(backend, asked, sampling=GREEDY, max_tokens=200))
    await engine.until("num_requests_running", lambda running: running == 1)
    pause = asyncio.create_task(backend.http.tell("/pause?mode=wait"))
    assert (await begun).finish_reason == "length"
    await pause
    late = asyncio.create_task(ask(backend, prompt(5)))
    await engine.until("num_requests_waiting", lambda waiting: waiting == 1)
    await backend.engine.resume()
    assert (await late).token_ids


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"token_ids": [1], "sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens"),
        ({"token_ids": [1], "sampling_params": {"max_token": 5}}, "sampling_params.max_token"),
        ({"token_ids": [1], "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"token_ids": [1], "sampling_params": {"n": 2}}, "sampling_params.n"),
        ({"token_ids": [1]}, "sampling_params"),
        ({"token_ids": [1], "sampling_params": {}, "model": "other"}, "model"),
    ],
)
async def test_bad_requests_are_refused_by_parameter_name(
    engine: Engine, body: object, param: str
) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        response = await http.post(f"{engine.url}/inference/v1/generate", json=body)
    error = response.json()["error"]
    assert error["code"] == response.status_code
    assert response.status_code in (400, 404)
    assert error["param"].removeprefix("body.") == param


async def test_fields_that_vllm_omits_are_omitted(engine: Engine) -> None:
    body = {"token_ids": [1], "sampling_params": {"max_tokens": 2, "ignore_eos": True}}
    async with httpx.AsyncClient(base_url=engine.url, trust_env=False) as http:
        choice = (await http.post("/inference/v1/generate", json=body)).json()["choices"][0]
        unknown = await http.get("/nowhere")
    assert (choice["logprobs"], len(choice["token_ids"])) == (None, 2)
    assert unknown.json()["error"]["code"] == 404


async def test_a_signal_lets_running_calls_finish(tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "model")
    with local.engine(tmp_path / "model", log=tmp_path / "log") as process:
        engine = Engine(process.url, tmp_path / "model")
        async with engine.backend() as backend:
            asked = await endless_prompt(backend)
            call = asyncio.create_task(ask(backend, asked, sampling=GREEDY, max_tokens=300))
            await engine.until("num_requests_running", lambda running: running == 1)
            process.process.send_signal(signal.SIGTERM)
            assert len((await call).token_ids) == 300
        await asyncio.to_thread(process.process.wait, TIMEOUT_S)
    loading, serving = process.log.read_text().splitlines()
    assert loading.endswith(f"loading {tmp_path / 'model'}")
    assert serving.endswith(f"serving model, 4096 tokens of context, at {process.url}")


def test_models_that_cannot_be_served_are_named(tmp_path: Path, tiny_model: Path) -> None:
    port = local.free_port()
    with pytest.raises(BackendError, match=r"no config\.json"):
        serve(tmp_path / "nowhere", port=port)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BackendError, match="cannot load"):
        serve(tmp_path, port=port)
    build_tiny_model(tmp_path / "partial")
    rewrite(tmp_path / "partial", lambda t: t.pop(NORM))
    with pytest.raises(BackendError, match="lacks 1 tensors"):
        serve(tmp_path / "partial", port=port)
    with pytest.raises(BackendError, match="does not fit a KV cache"):
        serve(tiny_model, port=port, kv_cache_gib=0.001)


def test_models_that_would_be_served_wrongly_are_refused(tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "window")
    file = tmp_path / "window" / "config.json"
    windows = {"use_sliding_window": True, "sliding_window": 8, "layer_types": None}
    file.write_text(json.dumps(json.loads(file.read_text()) | windows | {"max_window_layers": 0}))
    with pytest.raises(BackendError, match="sliding_window"):
        PackedModel(tmp_path / "window", torch.float32)
    config = MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=64)
    MambaForCausalLM(config).save_pretrained(tmp_path / "recurrent")
    with pytest.raises(BackendError, match="cannot serve"):
        PackedModel(tmp_path / "recurrent", torch.float32)


def test_an_address_in_use_is_named(tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ProRLError, match=f"{port}: Address already in use"):
            serve(tiny_model, port=port)
