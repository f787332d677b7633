"""A new kind of engine is one file and one line: its rollouts and weights, through the service."""

import inspect
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from prorl_service.inference.engines.kinds import ENGINES
from prorl_service.testing.loopback import Handler, Loopback
from prorl_service.tokens.chat import ChatFormat
from tests.server import third_engine
from tests.server.application import Settings, finished, group, serving
from tests.server.third_engine import ThirdEngine
from tests.trainers import async_trainer

pytestmark = pytest.mark.processes

MAX_LINES = 80


class ThirdServer(Loopback):
    """Answers everything with the right number, in a box."""

    def __init__(self, model: Path, chat: ChatFormat) -> None:
        self._reply = [*chat.encode("\\boxed{4711}"), chat.end_of_turn_id]
        self._model = model
        self._version = "default"
        self.called: list[str] = []
        self.directory = ""

    async def respond(self, request: Request) -> Response:
        if request.method == "POST":
            self.called.append(request.url.path)
        return await super().respond(request)

    def routes(self) -> Mapping[str, Handler]:
        return {
            "/health": self._nothing,
            "/v1/models": self._models,
            "/model_info": self._model_info,
            "/generate": self._generate,
            "/pause_generation": self._nothing,
            "/continue_generation": self._nothing,
            "/update_weights_from_disk": self._update,
        }

    async def _nothing(self, _: Request) -> Response:
        return JSONResponse({})

    async def _models(self, _: Request) -> Response:
        model = {"id": "m", "root": str(self._model), "max_model_len": 4096, "owned_by": "third"}
        return JSONResponse({"data": [model]})

    async def _model_info(self, _: Request) -> Response:
        return JSONResponse({"weight_version": self._version})

    async def _generate(self, request: Request) -> Response:
        asked = await request.json()
        assert asked["input_ids"]
        ids = self._reply[: asked["sampling_params"]["max_new_tokens"]]
        meta = {
            "finish_reason": {"type": "stop", "matched": ids[-1]},
            "cached_tokens": 0,
            "output_token_logprobs": [[-0.5, one, None] for one in ids],
            "weight_versions": [[self._version, 0, len(ids)]],
        }
        return JSONResponse({"output_ids": ids, "meta_info": meta})

    async def _update(self, request: Request) -> Response:
        body = await request.json()
        self.directory, self._version = body["model_path"], body["weight_version"]
        return JSONResponse({"success": True})


def test_the_engine_is_short_and_knows_only_the_protocol() -> None:
    source = inspect.getsource(third_engine)
    assert len(source.splitlines()) < MAX_LINES
    imported = {line for line in source.splitlines() if line.startswith("from prorl")}
    assert imported == {
        "from prorl_service.errors import BackendRejected",
        "from prorl_service.inference.engines import base",
    }


@pytest.mark.parametrize("kind", ["auto", "third"])
async def test_a_third_engine_serves_rollouts_and_takes_weights(
    tiny_model: Path, chat: ChatFormat, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(ENGINES, ThirdEngine.kind, ThirdEngine)
    settings = Settings(sandbox="process")
    async with (
        ThirdServer(tiny_model, chat) as engine,
        serving(settings) as url,
        async_trainer(url) as client,
    ):
        async with httpx.AsyncClient(base_url=url) as http:
            added = await http.post("/v1/backends", json={"url": engine.url, "kind": kind})
            refused = await http.post("/v1/backends", json={"url": engine.url, "kind": "fourth"})
        assert added.is_success, added.text
        assert "only auto, prorl, sglang, vllm, openai, third" in refused.text
        await client.load_weights(str(tiny_model))
        (rollout,) = await finished(client, group())
    assert engine.directory == str(tiny_model)
    assert engine.called == [
        "/pause_generation",
        "/update_weights_from_disk",
        "/continue_generation",
        "/generate",
    ]
    assert (rollout.error, rollout.reward) == (None, 1.0)
    assert rollout.trajectory is not None
    (segment,) = rollout.trajectory.segments
    assert set(segment.policy_versions) == {1}
    assert rollout.trajectory.logprobs_mode == "processed"
