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
from prorl_service.inference.engines import sglang
from prorl_service.inference.engines.base import EngineCall
from prorl_service.inference.pool import BackendPool
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.inference.sources import Broadcast, WeightDirectory, WeightFile
from prorl_service.schemas import BackendSpec, EngineGauges, EngineTimes, Sampling, WeightsQuery
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
    "device": "cuda",
    "tp_size": 2,
    "pp_size": 1,
    "dp_size": 1,
    "startup_time": {"scheduler_e2e": 1.928985548000128, "tokenizer_e2e": 21.7856567609997},
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


@pytest.mark.parametrize("is_ready", [True, False])
async def test_an_engine_describes_itself_by_how_it_was_started(is_ready: bool) -> None:
    ready = answers("", 200 if is_ready else 503)
    async with backend_of(Sglang(**{"/ready": ready}).routes()) as backend:
        info = await backend.describe()
        assert backend.engine.kind == "sglang"
    assert (info.model, info.root, info.max_model_len) == ("m", "/m", 64)
    assert (info.policy_version, info.is_paused) == (7, not is_ready)


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
    assert (generation.finish_reason, generation.times) == ("stop", None)
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


async def test_pictures_are_refused_before_the_call() -> None:
    engine = Sglang()
    async with backend_of(engine.routes()) as backend:
        with pytest.raises(BackendRejected, match=f"{backend.url} takes no pictures") as refused:
            await generate(backend, pictures=[b"one"])
    assert refused.value.hint == "vLLM 0.32 and the reference engine do"
    assert not engine.asked


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


async def test_a_server_with_metrics_tells_times() -> None:
    told = {"queue_time": 0.25, "forward_entry_time": 9.0, "prefill_finished_time": 9.5}
    answer = {**ANSWER, "meta_info": {**META, **told, "request_finished_ts": 11.5}}
    async with backend_of(Sglang(**{"/generate": answers(answer)}).routes()) as backend:
        generation = await generate(backend)
    assert generation.times == EngineTimes(queue_s=0.25, prefill_s=0.5, decode_s=2.0)


@pytest.mark.parametrize("has_metrics", [False, True])
async def test_loads_of_its_ranks_are_added_up(has_metrics: bool) -> None:
    rank = {"max_total_num_tokens": 1000, "token_usage": 0.25, "num_waiting_reqs": 2}
    routes = {"/v1/loads": answers({"loads": [rank, {**rank, "token_usage": 0.75}]})}
    if has_metrics:
        routes["/metrics"] = answers(
            'sglang:num_retracted_requests_total{pid="1",tp_rank="0"} 2.0\n'
            'sglang:num_retracted_requests_total{pid="2",tp_rank="0"} 1.0\n'
        )
    async with backend_of(Sglang(**routes).routes()) as backend:
        await backend.describe()
        gauges = await backend.load(timeout_s=30)
    assert gauges == EngineGauges(
        kv_tokens=2000, kv_use=0.5, waiting=4, preemptions=3 if has_metrics else 0
    )


# --- weights ------------------------------------------------------------------------------------


async def test_an_engine_without_the_plug_in_takes_directories_alone(tmp_path: Path) -> None:
    engine = Sglang(
        **{path: answers({}) for path in ("/pause_generation", "/continue_generation")},
        **{"/update_weights_from_disk": answers({"success": True})},
    )
    async with backend_of(engine.routes()) as backend:
        await backend.load_weights(WeightDirectory(str(tmp_path)), "8", timeout_s=30)
        with pytest.raises(BackendRejected, match="takes no files") as caught:
            await backend.load_weights(WeightFile(tmp_path / "file"), "9", timeout_s=30)
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
            await backend.load_weights(WeightDirectory(str(tmp_path)), "8", timeout_s=30)
    assert [path for path, _ in engine.asked] == ["/pause_generation", "/update_weights_from_disk"]


UPDATE_INFO = {
    "names": ["a", "b", "c", "d"],
    "dtypes": ["bfloat16"] * 4,
    "shapes": [[3], [5, 2], [4], [1, 2, 2]],
    "group_name": "g",
}
BROADCAST_ROUTES = (
    *("/destroy_weights_update_group", "/init_weights_update_group", "/begin_weight_update"),
    *("/update_weights_from_distributed", "/end_weight_update"),
    *("/pause_generation", "/continue_generation"),
)


async def test_a_broadcast_comes_in_parts_and_has_its_label_with_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sglang, "PART_ELEMENTS", 8)
    engine = Sglang(**{path: answers({"success": True}) for path in BROADCAST_ROUTES})
    async with backend_of(engine.routes()) as backend:
        intake = await backend.intake(await backend.describe())
        process = await backend.process()
        await backend.join_group({"world_size": 3, "replaced": "old"}, timeout_s=30)
        await backend.load_weights(Broadcast(UPDATE_INFO, None), "8", timeout_s=30)
    assert (intake.workers, process) == (2, "1.928985548000128 21.7856567609997")
    assert [path.removeprefix("/") for path, _ in engine.asked] == [
        *("destroy_weights_update_group", "init_weights_update_group"),
        *("pause_generation", "begin_weight_update"),
        *["update_weights_from_distributed"] * 3,
        *("end_weight_update", "continue_generation"),
    ]
    assert [body for _, body in engine.asked[:2]] == [{"group_name": "old"}, {"world_size": 3}]
    parts = [body for path, body in engine.asked if path == "/update_weights_from_distributed"]
    assert [part["names"] for part in parts] == [["a"], ["b"], ["c", "d"]]
    assert [part["shapes"] for part in parts] == [[[3]], [[5, 2]], [[4], [1, 2, 2]]]
    assert {part["group_name"] for part in parts} == {"g"}
    assert [part.get("weight_version") for part in parts] == [None, None, "8"]


async def test_a_part_that_fails_ends_the_update_and_leaves_the_engine_paused() -> None:
    routes = {path: answers({"success": True}) for path in BROADCAST_ROUTES}
    failure = answers({"success": False, "message": "no such tensor"}, 400)
    engine = Sglang(**{**routes, "/update_weights_from_distributed": failure})
    async with backend_of(engine.routes()) as backend:
        with pytest.raises(BackendError, match=r"stays paused.*no such tensor"):
            await backend.load_weights(Broadcast(UPDATE_INFO, None), "8", timeout_s=30)
    assert [path for path, _ in engine.asked][-2:] == [
        "/update_weights_from_distributed",
        "/end_weight_update",
    ]


@pytest.mark.parametrize(
    "info", [{}, {**UPDATE_INFO, "shapes": [[3]]}, {**UPDATE_INFO, "names": 1}]
)
async def test_a_broadcast_for_other_engines_is_refused_before_the_pause(
    info: dict[str, Any],
) -> None:
    engine = Sglang()
    async with backend_of(engine.routes()) as backend:
        with pytest.raises(BackendRejected, match="update_info is not for SGLang"):
            await backend.load_weights(Broadcast(info, None), "8", timeout_s=30)
    assert engine.asked == []


@pytest.mark.parametrize("protocol", ["nccl", "torch_nccl"])
async def test_a_trainer_is_told_to_broadcast_if_it_can_do_it_as_sglang_does(
    protocol: str, tiny_model: Path, tmp_path: Path
) -> None:
    server = answers({**SERVER, "model_path": str(tiny_model)})
    healthy = {path: answers("") for path in ("/health", "/ping")}
    routes = Sglang(**{"/server_info": server, **healthy}).routes()
    query = WeightsQuery(as_file=False).model_copy(update={protocol: True})
    async with backend_of(routes) as backend, BackendPool(tmp_path) as pool:
        await pool.add(BackendSpec(url=backend.url))
        terms = await pool.weights.terms(query)
    expected = (2, "sglang") if protocol == "torch_nccl" else (0, "")
    assert (terms.workers, terms.protocol) == expected


@pytest.mark.parametrize("changed", [{"device": "cpu"}, {"pp_size": 2}, {"dp_size": 2}])
async def test_an_engine_without_a_gpu_or_with_several_ranks_takes_no_broadcasts(
    changed: dict[str, Any],
) -> None:
    routes = Sglang(**{"/server_info": answers({**SERVER, **changed})}).routes()
    async with backend_of(routes) as backend:
        intake = await backend.intake(await backend.describe())
    assert intake.workers == 0


async def test_the_plug_in_says_what_the_engine_takes() -> None:
    async with backend_of(Sglang(**{"/prorl": answers({"dtype": "bfloat16"})}).routes()) as backend:
        intake = await backend.intake(await backend.describe())
    assert (intake.dtype, intake.needs_for_files, intake.max_lora_rank) == ("bfloat16", "", 8)
    assert intake.workers == 0
    assert not intake.takes_seeds
