"""SGLang's routes, with scripted answers; `scripts/test-sglang` runs the contract on a real one."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from prorl_service.errors import BackendError, BackendRejected
from prorl_service.inference.backend import Backend
from prorl_service.inference.base import Generation
from prorl_service.inference.engines.base import EngineCall
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.inference.sources import Broadcast, WeightDirectory, WeightFile
from prorl_service.schemas import Sampling
from prorl_service.testing.loopback import Handler
from tests.inference.scripted_backend import answers, backend_of

PROMPT = [1, 2, 3]
MODELS = {"data": [{"id": "/weights/7", "root": "/weights/7", "max_model_len": 70}]}
MODELS["data"][0] |= {"owned_by": "sglang"}
SERVER = {
    "version": "0.5.23",
    "served_model_name": "m",
    "model_path": "/m",
    "max_req_input_len": 64,
    "dtype": "auto",
    "enable_lora": True,
    "max_lora_rank": 8,
    "enable_deterministic_inference": False,
}
META: dict[str, Any] = {
    "prompt_tokens": 3,
    "cached_tokens": 2,
    "finish_reason": {"type": "stop", "matched": 8},
    "output_token_logprobs": [[-0.5, 7, None], [1e-7, 8, None]],
    "weight_versions": [
        {"version": "default", "start": 0, "end": 1},
        {"version": "4", "start": 1, "end": 2},
    ],
}
ANSWER: dict[str, Any] = {"output_ids": [7, 8], "meta_info": META}


class Sglang:
    """SGLang's routes, which note what they are asked."""

    def __init__(self, **changed: Any) -> None:
        self.asked: list[tuple[str, Any]] = []
        self._answers: dict[str, Handler] = {
            "/v1/models": answers(MODELS),
            "/server_info": answers(SERVER),
            "/model_info": answers({"weight_version": "7"}),
            "/ready": answers(""),
            "/generate": answers(ANSWER),
            **changed,
        }

    def routes(self) -> dict[str, Handler]:
        return {path: self._noting(path) for path in self._answers}

    def _noting(self, path: str) -> Handler:
        async def handler(request: Request) -> Response:
            if request.method == "POST":
                self.asked.append((path, await request.json()))
            return await self._answers[path](request)

        return handler


async def generate(
    backend: Backend, sampling: Sampling | None = None, **options: Any
) -> Generation:
    await backend.describe()
    options = {"max_tokens": 5, "seed": 1, **options}
    return await backend.generate(
        EngineCall(EncodedPrompt(PROMPT), sampling or Sampling(), session_id="rollout", **options)
    )


async def test_an_engine_describes_itself_by_how_it_was_started() -> None:
    async with backend_of(Sglang().routes()) as backend:
        info = await backend.describe()
        assert backend.engine.kind == "sglang"
    assert (info.model, info.root, info.max_model_len) == ("m", "/m", 64)
    assert (info.policy_version, info.is_paused) == (7, False)


async def test_an_engine_that_is_not_ready_is_paused() -> None:
    async with backend_of(Sglang(**{"/ready": answers("", 503)}).routes()) as backend:
        assert (await backend.describe()).is_paused


async def test_an_older_release_is_refused() -> None:
    routes = Sglang(**{"/server_info": answers({**SERVER, "version": "0.5.12"})}).routes()
    async with backend_of(routes) as backend:
        with pytest.raises(BackendRejected, match=r"is SGLang 0\.5\.12, not .*>=0\.5\.23"):
            await backend.describe()


async def test_a_sound_answer_is_read(caplog: pytest.LogCaptureFixture) -> None:
    engine = Sglang()
    async with backend_of(engine.routes()) as backend:
        generation = await generate(backend, stop_token_ids=[9], stop=["\nObservation:"])
        await generate(backend, max_tokens=100)
    assert (generation.token_ids, generation.logprobs) == ([7, 8], [-0.5, 0.0])
    assert (generation.policy_versions, generation.cached_tokens) == ([0, 4], 2)
    assert generation.finish_reason == "stop"
    (_, first), (_, second) = engine.asked
    assert first == {
        "input_ids": PROMPT,
        "return_logprob": True,
        "sampling_params": {
            "max_new_tokens": 5,
            "temperature": 1.0,
            "sampling_seed": None,
            "stop_token_ids": [9],
            "stop": ["\nObservation:"],
        },
    }
    assert second["sampling_params"]["max_new_tokens"] == 61
    assert caplog.text.count("gets no seeds") == 1


async def test_seeds_go_to_an_engine_that_samples_by_them() -> None:
    server = {**SERVER, "enable_deterministic_inference": True}
    engine = Sglang(**{"/server_info": answers(server)})
    async with backend_of(engine.routes()) as backend:
        await generate(backend)
    assert engine.asked[0][1]["sampling_params"]["sampling_seed"] == 1


@pytest.mark.parametrize("sampling", [Sampling(top_p=0.9), Sampling(top_k=20)])
async def test_truncated_sampling_is_refused_before_the_call(sampling: Sampling) -> None:
    engine = Sglang()
    async with backend_of(engine.routes()) as backend:
        with pytest.raises(BackendRejected, match="no exact logprobs with top_p"):
            await generate(backend, sampling)
    assert engine.asked == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_tokens", 4),
        ("cached_tokens", "two"),
        ("finish_reason", None),
        ("finish_reason", {"type": "repetition"}),
        ("output_token_logprobs", []),
        ("output_token_logprobs", [[-0.5, 7, None], [-0.5, 9, None]]),
        ("output_token_logprobs", [[-0.5, 7, None], [None, 8, None]]),
        ("weight_versions", None),
        ("weight_versions", [{"version": "4", "start": 0, "end": 1}]),
    ],
)
async def test_an_impossible_answer_is_an_error(field: str, value: Any) -> None:
    answer = {**ANSWER, "meta_info": {**META, field: value}}
    async with backend_of(Sglang(**{"/generate": answers(answer)}).routes()) as backend:
        with pytest.raises(BackendError, match="sent an invalid answer"):
            await generate(backend)


async def test_an_abort_before_the_first_token_is_an_empty_generation() -> None:
    meta = {**META, "output_token_logprobs": [], "finish_reason": {"type": "abort"}}
    answer = {"output_ids": [], "meta_info": meta}
    async with backend_of(Sglang(**{"/generate": answers(answer)}).routes()) as backend:
        generation = await generate(backend)
    assert (generation.finish_reason, generation.token_ids) == ("abort", [])


async def test_raw_logprobs_are_refused() -> None:
    raw = deepcopy(META)
    raw["output_token_logprobs"] = [[-3.0 - place / 7, place, None] for place in range(8)]
    engine = Sglang(**{"/generate": answers({"output_ids": [], "meta_info": raw})})
    async with backend_of(engine.routes()) as backend:
        info = await backend.describe()
        with pytest.raises(BackendRejected, match="raw logprobs") as caught:
            await backend.check_logprobs(info, may_probe=True)
    assert "SGLANG_RETURN_ORIGINAL_LOGPROB" in caught.value.hint


# --- weights ------------------------------------------------------------------------------------


async def test_an_engine_without_the_plug_in_takes_directories_alone(tmp_path: Path) -> None:
    engine = Sglang(
        **{path: answers({}) for path in ("/pause_generation", "/continue_generation")},
        **{"/update_weights_from_disk": answers({"success": True})},
    )
    async with backend_of(engine.routes()) as backend:
        await backend.load_weights(WeightDirectory(str(tmp_path)), 8, timeout_s=30)
        with pytest.raises(BackendRejected, match="takes no files") as caught:
            await backend.load_weights(WeightFile(tmp_path / "file"), 9, timeout_s=30)
    assert "install prorl-service next to SGLang" in caught.value.hint
    assert engine.asked == [
        ("/pause_generation", {"mode": "retract"}),
        ("/update_weights_from_disk", {"model_path": str(tmp_path), "weight_version": "8"}),
        ("/continue_generation", {}),
    ]


async def test_an_update_that_fails_leaves_the_engine_paused(tmp_path: Path) -> None:
    failure = answers({"success": False, "message": "no such tensor"}, 400)
    engine = Sglang(
        **{"/pause_generation": answers({}), "/update_weights_from_disk": failure},
    )
    async with backend_of(engine.routes()) as backend:
        with pytest.raises(BackendError, match=r"stays paused.*no such tensor"):
            await backend.load_weights(WeightDirectory(str(tmp_path)), 8, timeout_s=30)
    assert [path for path, _ in engine.asked] == ["/pause_generation", "/update_weights_from_disk"]


async def test_broadcasts_are_refused_with_what_to_use_instead() -> None:
    async with backend_of(Sglang().routes()) as backend:
        with pytest.raises(BackendRejected, match="takes no broadcasts") as caught:
            await backend.load_weights(Broadcast({}, None), 8, timeout_s=30)
    assert "as files" in caught.value.hint


async def test_the_plug_in_says_what_the_engine_takes() -> None:
    async with backend_of(Sglang(**{"/prorl": answers({"dtype": "bfloat16"})}).routes()) as backend:
        intake = await backend.intake(await backend.describe())
    assert (intake.dtype, intake.needs_for_files, intake.max_lora_rank) == ("bfloat16", "", 8)
    assert not intake.takes_seeds
