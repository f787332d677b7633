"""`Backend` against engines that misbehave, over real HTTP."""

import asyncio
import logging
from contextlib import aclosing
from copy import deepcopy
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from prorl_service.errors import BackendBusy, BackendError, BackendRejected, BackendUnavailable
from prorl_service.inference.backend import Backend
from prorl_service.inference.base import Generation
from prorl_service.inference.connections import Connections
from prorl_service.inference.engines.base import EngineCall
from prorl_service.inference.engines.http import NotOffered
from prorl_service.inference.engines.kinds import ENGINES
from prorl_service.inference.engines.reference import OWNER
from prorl_service.inference.engines.vllm_routes import VllmRoutes
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.schemas import Sampling
from prorl_service.testing.loopback import Handler
from tests.inference.raw_server import read_request, server_that
from tests.inference.scripted_backend import MODELS, answers, backend_of, hang

PROMPT = [1, 2, 3]
ANSWER: dict[str, Any] = {
    "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
    "choices": [
        {
            "finish_reason": "stop",
            "token_ids": [7, 8],
            "weight_versions": [
                {"version": "default", "start": 0, "end": 1},
                {"version": "4", "start": 1, "end": 2},
            ],
            "logprobs": {"content": [{"logprob": -0.5}, {"logprob": 1e-7}]},
        }
    ],
}


@pytest.fixture(params=[one.kind for one in ENGINES.values() if issubclass(one, VllmRoutes)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def generate(backend: Backend, **options: Any) -> Generation:
    prompt = EncodedPrompt(PROMPT)
    return await backend.generate(
        EngineCall(prompt, Sampling(), 5, 1, "rollout", stop_token_ids=[9], **options)
    )


async def generate_from(handler: Handler, kind: str = "auto", **options: Any) -> Generation:
    async with backend_of({"/inference/v1/generate": handler}, kind) as backend:
        return await generate(backend, **options)


# --- generate -----------------------------------------------------------------------------------


async def test_a_sound_answer_is_read(kind: str) -> None:
    seen: dict[str, Any] = {}

    async def handler(request: Request) -> Response:
        seen.update(await request.json(), session=request.headers["X-Session-ID"])
        return JSONResponse(ANSWER)

    generation = await generate_from(handler, kind)
    assert generation.backend.startswith("127.0.0.1:")
    assert (generation.token_ids, generation.logprobs) == ([7, 8], [-0.5, 0.0])
    assert (generation.policy_versions, generation.cached_tokens) == ([0, 4], 2)
    assert (seen["session"], seen["token_ids"]) == ("rollout", PROMPT)
    assert seen["sampling_params"] == {
        "max_tokens": 5,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "seed": 1,
        "stop_token_ids": [9],
        "logprobs": 0,
        "detokenize": False,
    }
    await generate_from(handler, kind, stop=["\nObservation:"])
    assert seen["sampling_params"]["stop"] == ["\nObservation:"]
    assert seen["sampling_params"]["detokenize"]  # vLLM refuses stops without


def _spoilt(path: str, value: Any) -> dict[str, Any]:
    """Returns ANSWER with one value replaced; `path` is made of keys and indexes."""
    answer = deepcopy(ANSWER)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place: Any = answer
    for key in parents:
        place = place[key]
    place[last] = value
    return answer


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("choices", []),
        ("usage.prompt_tokens", 4),
        ("choices.0.finish_reason", "repetition"),
        ("choices.0.token_ids", [7]),
        ("choices.0.token_ids", [7, 8, 9]),
        ("choices.0.token_ids", [7, "8"]),
        ("choices.0.token_ids", [7, 8.0]),
        ("choices.0.token_ids", [7, True]),
        ("choices.0.token_ids", [7, -1]),
        ("choices.0.token_ids", [7, 2**31]),
        ("choices.0.token_ids", None),
        ("usage.prompt_tokens_details.cached_tokens", "two"),
        ("choices.0.logprobs", None),
        ("choices.0.logprobs.content", [{"logprob": -0.5}]),
        ("choices.0.logprobs.content.0.logprob", -9999.0),
        ("choices.0.logprobs.content.0.logprob", 0.1),
        ("choices.0.logprobs.content.0.logprob", None),
        ("choices.0.weight_versions", None),
        ("choices.0.weight_versions.1.start", 0),
        ("choices.0.weight_versions.1.end", 10**12),
        ("choices.0.weight_versions.1.version", "step four"),
        ("choices.0.weight_versions.1.version", str(2**31)),
        ("choices.0.weight_versions.1.version", "-1"),
        ("choices.0.weight_versions", [{"version": "4", "start": 0, "end": 1}]),
    ],
)
async def test_an_impossible_answer_is_an_error(path: str, value: Any, kind: str) -> None:
    with pytest.raises(BackendError, match="sent an invalid answer") as caught:
        await generate_from(answers(_spoilt(path, value)), kind)
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("token_ids", "problem"),
    [([], "no ids"), ([7] * 6, "more ids than asked for"), ([7, 320], "unknown ids")],
)
async def test_ids_that_cannot_have_been_sampled_are_an_error(
    token_ids: list[int], problem: str, kind: str
) -> None:
    answer = deepcopy(ANSWER)
    answer["choices"][0] |= {
        "token_ids": token_ids,
        "logprobs": {"content": [{"logprob": -0.5} for _ in token_ids]},
        "weight_versions": [{"version": "4", "start": 0, "end": len(token_ids)}][: len(token_ids)],
    }
    async with backend_of({"/inference/v1/generate": answers(answer)}, kind) as backend:
        backend.vocab_size = 320
        with pytest.raises(BackendError, match=problem):
            await generate(backend)


@pytest.mark.parametrize("text", ["<html>", "", "null", "[1]", '{"usage": NaN}'])
async def test_an_answer_that_is_no_generation_is_an_error(text: str, kind: str) -> None:
    with pytest.raises(BackendError, match="sent an invalid answer"):
        await generate_from(answers(text), kind)


async def test_an_abort_before_the_first_token_is_an_empty_generation(kind: str) -> None:
    answer = deepcopy(ANSWER)
    answer["choices"][0] |= {
        "finish_reason": "abort",
        "token_ids": [],
        "weight_versions": None,
        "logprobs": None,
    }
    generation = await generate_from(answers(answer), kind)
    assert (generation.finish_reason, generation.token_ids) == ("abort", [])


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, BackendRejected, False),
        (401, BackendRejected, False),
        (403, NotOffered, False),
        (404, NotOffered, False),
        (429, BackendBusy, True),
        (500, BackendError, True),
        (502, BackendError, True),
        (503, BackendUnavailable, True),
    ],
)
async def test_status_codes_are_told_apart(
    status: int, kind: type[BackendError], retryable: bool
) -> None:
    error = {"error": {"message": "the reason", "type": "X", "param": None, "code": status}}
    for body in (error, "the reason"):
        with pytest.raises(BackendError, match=f"generate: {status}") as caught:
            await generate_from(answers(body, status))
        assert type(caught.value) is kind
        assert caught.value.retryable is retryable
        is_told = body is error and status not in (401, 403)
        assert ("the reason" in caught.value.message) is is_told


SECRETS = ("internal", "4711")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("internal 4711", 403),
        ("internal 4711", 500),
        ({"error": {"message": "internal 4711", "type": "internal"}}, 404),
        ({"internal": "4711"}, 200),
        ({"data": [{"id": "m"}]}, 200),
        ({"data": [{**MODELS["data"][0], "max_model_len": "internal 4711"}]}, 200),
        ({"data": [{**MODELS["data"][0], "root": ["internal 4711"]}]}, 200),
        ("internal 4711", 200),
    ],
)
async def test_answers_of_a_host_that_is_no_engine_are_not_repeated(
    body: Any, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with backend_of({"/v1/models": answers(body, status)}) as backend:
        with pytest.raises(BackendError, match="/v1/models") as caught:
            await backend.describe()
    told = f"{caught.value.message} {caught.value.hint} {caplog.text}"
    assert not [secret for secret in SECRETS if secret in told]


async def test_a_connection_lost_in_the_body_is_unavailable() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"usage"')

    async with server_that(cut) as url, aclosing(Connections()) as connections:
        with pytest.raises(BackendUnavailable):
            await generate(Backend(url, connections))


# --- health and description ---------------------------------------------------------------------


@pytest.mark.slow
async def test_health_is_a_200_in_time() -> None:
    for handler, healthy in ((answers(""), True), (answers("", 503), False), (hang, False)):
        async with backend_of({"/health": handler}) as backend:
            assert await backend.is_healthy(timeout_s=0.5 if handler is hang else 30) is healthy


async def test_an_engine_without_weight_routes_was_never_updated() -> None:
    async with backend_of({"/v1/models": answers(MODELS)}) as backend:
        info = await backend.describe()
    assert (info.model, info.root, info.max_model_len) == ("m", "/m", 64)
    assert (info.policy_version, info.is_paused, backend.engine.kind) == (None, False, "vllm")


@pytest.mark.parametrize(("owner", "kind"), [("vllm", "vllm"), (OWNER, "prorl"), ("verl", "vllm")])
async def test_an_engine_is_asked_which_kind_it_is(owner: str, kind: str) -> None:
    models = {"data": [MODELS["data"][0] | {"owned_by": owner}]}
    async with backend_of({"/v1/models": answers(models)}) as backend:
        await backend.describe()
    assert backend.engine.kind == kind


async def test_a_kind_that_is_named_is_not_asked(kind: str) -> None:
    async with backend_of({"/v1/models": answers(MODELS)}, kind) as backend:
        await backend.describe()
    assert backend.engine.kind == kind


@pytest.mark.parametrize("label", ["step four", "", None, str(2**31), "internal 4711"])
async def test_a_label_that_is_no_version_is_an_error_that_does_not_repeat_it(
    label: str | None,
) -> None:
    routes = {
        "/v1/models": answers(MODELS),
        "/weight_info": answers({"weight_version": label}),
    }
    async with backend_of(routes) as backend:
        with pytest.raises(BackendError, match="weight_info sent an invalid answer") as caught:
            await backend.describe()
    assert not [secret for secret in SECRETS if secret in caught.value.message]
