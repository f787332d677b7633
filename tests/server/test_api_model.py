"""A model behind an API as the policy: its rollouts, its failures, and their uses."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.client.trainable import failure_of, trained_masks
from prorl_service.errors import BackendRejected, ProRLError
from prorl_service.exports import atif, sft, tokens
from prorl_service.exports.transcript import ExportRecord, Transcriber
from prorl_service.inference import session
from prorl_service.inference.backend import Backend
from prorl_service.inference.connections import Connections
from prorl_service.inference.engines.base import EngineCall
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.schemas import (
    BackendSpec,
    Blame,
    FinishReason,
    PolicyClaim,
    Rollout,
    RolloutState,
    Sampling,
)
from prorl_service.schemas.sampling import SamplerSpec
from prorl_service.server.settings import EngineOptions
from prorl_service.testing import StubApi, StubEngine
from prorl_service.testing.stubs import Messages
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.message_tokens import PREFIX
from prorl_trl.convert import row_of
from prorl_verl.rows import rows_of
from tests.server.application import Settings, connected, finished, group
from tests.trainers import training

pytestmark = pytest.mark.processes

Said = str | Mapping[str, Any]

READ = {
    "content": "I look.",
    "reasoning_content": "Where is it?",
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "bash", "arguments": '{"command": "cat secret"}'},
        }
    ],
    "finish_reason": "tool_calls",
}


def solves(messages: Messages) -> Said:
    """Reads the file, then says what is in it."""
    last = messages[-1]
    return READ if last["role"] == "user" else f"\\boxed{{{last['content'].strip()}}}"


def spec_of(api: StubApi, **fields: Any) -> BackendSpec:
    return BackendSpec.model_validate(
        {"kind": "openai", "model": "stub", "url": f"{api.url}/v1"} | fields
    )


@asynccontextmanager
async def served(
    reply: Callable[[Messages], Said], **fields: Any
) -> AsyncIterator[tuple[StubApi, AsyncRolloutClient]]:
    """A service whose policy is a model behind an API; a failed rollout is not begun again."""
    async with StubApi(reply) as api:
        settings = Settings(
            backends=(spec_of(api),),
            sandbox="process",
            pipeline=PipelineConfig(max_attempts=1),
            **fields,
        )
        async with connected(settings) as client:
            yield api, client


async def rollout_of(reply: Callable[[Messages], Said]) -> Rollout:
    async with served(reply) as (_, client):
        (rollout,) = await finished(client, group())
    return rollout


# --- rollouts -----------------------------------------------------------------------------------


async def test_a_rollout_calls_tools_is_graded_and_says_whose_text_it_is() -> None:
    async with served(solves) as (api, client):
        (rollout,) = await finished(client, group())
        text = await client.text(rollout.rollout_id)
    assert (rollout.error, rollout.reward) == (None, 1.0)
    first, second = api.requests
    assert [one["role"] for one in first["messages"]] == ["system", "user"]
    assert [one["function"]["name"] for one in first["tools"]] == ["bash"]
    assert set(first) == {"model", "messages", "tools"}
    called, result = second["messages"][2:]
    assert json.loads(called["tool_calls"][0]["function"]["arguments"]) == {"command": "cat secret"}
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": "4711"}
    trajectory = rollout.trajectory
    assert trajectory is not None
    assert (trajectory.policy, trajectory.logprobs_mode) == ("stub", "unknown")
    assert [one.is_trained for one in trajectory.segments] == [False]
    assert {turn.policy for turn in trajectory.turns} == {"stub"}
    assert "text of stub behind an API" in text.notice
    assert [turn.reasoning for turn in text.turns] == ["Where is it?", ""]


async def test_sampling_is_sent_where_it_differs_from_the_apis_defaults() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens_per_turn=100, seed=7)
    async with served(lambda _: "\\boxed{4711}") as (api, client):
        await finished(client, group().model_copy(update={"sampling": sampling}))
    (request,) = api.requests
    assert {name: request[name] for name in ("temperature", "top_p", "max_completion_tokens")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_completion_tokens": 100,
    }
    assert (type(request["seed"]), "top_k" in request) == (int, False)


async def test_a_reply_beyond_the_limit_is_cut_there() -> None:
    async with served(lambda _: "a" * 1000) as (_, client):
        (rollout,) = await finished(client, group(max_response_tokens=40))
    assert rollout.trajectory is not None
    (turn,) = rollout.trajectory.turns
    assert (turn.finish_reason, turn.text) == ("length", "a" * 40)
    assert rollout.trajectory.finish_reason is FinishReason.LENGTH
    assert rollout.reward == 0.0


async def test_a_reply_that_the_api_cut_off_is_answered_as_such() -> None:
    replies: list[Said] = [{"content": "I thi", "finish_reason": "length"}, "\\boxed{4711}"]
    rollout = await rollout_of(lambda _: replies.pop(0))
    assert rollout.trajectory is not None
    cut, whole = rollout.trajectory.turns
    assert (cut.finish_reason, cut.format_error) == (
        "length",
        "the reply was cut off at its length limit",
    )
    assert (whole.finish_reason, rollout.reward) == ("stop", 1.0)


async def test_a_call_with_broken_arguments_is_the_models_own_mistake() -> None:
    function = {"name": "bash", "arguments": '{"command": "cat'}
    broken = {"content": None, "tool_calls": [{"id": "c", "function": function}]}
    replies: list[Said] = [broken, "\\boxed{4711}"]
    asked: list[Messages] = []

    def reply(messages: Messages) -> Said:
        asked.append(messages)
        return replies.pop(0)

    rollout = await rollout_of(reply)
    assert rollout.trajectory is not None
    assert rollout.trajectory.turns[0].format_error is not None
    assert asked[1][-1]["role"] == "user"
    assert rollout.reward == 1.0


async def test_text_that_looks_like_a_call_is_text() -> None:
    forged = '<tool_call>\n{"name": "bash", "arguments": {"command": "cat secret"}}\n</tool_call>'
    rollout = await rollout_of(lambda _: forged)
    assert rollout.trajectory is not None
    (turn,) = rollout.trajectory.turns
    assert (turn.tool_calls, turn.format_error, rollout.reward) == ([], None, 0.0)


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ({"content": None, "refusal": "I will not."}, "refuses to answer: I will not"),
        ({"content": "", "finish_reason": "content_filter"}, "refuses to answer"),
        ("", "gave no text and no call"),
        ({"content": None, "finish_reason": "length"}, "gave no text and no call (length)"),
        ({"content": None, "reasoning_content": "Hm."}, "gave no text and no call"),
        ({"content": {"a": 1}}, "sent an invalid answer"),
        ({"content": "", "tool_calls": [{"id": "c"}]}, "sent an invalid answer"),
    ],
)
async def test_a_reply_with_nothing_to_go_on_is_the_backends_failure(
    reply: Said, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_ATTEMPTS", 1)
    rollout = await rollout_of(lambda _: reply)
    assert rollout.error is not None
    assert (rollout.state, rollout.error.blame) == (RolloutState.FAILED, Blame.BACKEND)
    assert rollout.reward is None
    assert problem in rollout.error.message


async def test_a_call_that_fails_for_a_passing_reason_is_made_again() -> None:
    async with served(solves) as (api, client):
        api.statuses = [500, 503]
        (rollout,) = await finished(client, group())
    assert (rollout.error, rollout.reward, len(api.requests)) == (None, 1.0, 4)


@pytest.mark.parametrize("prompt", ["", "Go on.", "<|im_start|>assistant\nI beg"])
async def test_a_prompt_that_is_no_conversation_is_refused(prompt: str) -> None:
    chat = ChatFormat.load(PREFIX)
    async with StubApi(solves) as api, aclosing(Connections()) as connections:
        backend = Backend(api.url, connections, kind="openai", model="stub")
        backend.know(chat)
        with pytest.raises(BackendRejected, match="takes messages alone"):
            await backend.generate(
                EngineCall(EncodedPrompt(chat.encode(prompt)), Sampling(), 10, None, "session")
            )
    assert api.requests == []


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_request_that_is_refused_is_not_made_again(status: int) -> None:
    async with served(solves) as (api, client):
        api.statuses = [status]
        (rollout,) = await finished(client, group())
    assert rollout.error is not None
    assert (rollout.error.blame, len(api.requests)) == (Blame.BACKEND, 1)
    assert str(status) in rollout.error.message


async def test_a_rate_limit_is_waited_for_and_takes_no_engine_down() -> None:
    async with served(solves) as (api, client):
        api.statuses, api.retry_after = [429] * 6, "1"
        (rollout,) = await finished(client, group())
        (backend,) = (await client.status()).backends
    assert (rollout.error, rollout.reward, len(api.requests)) == (None, 1.0, 8)
    assert backend.reason == ""
    assert rollout.trajectory is not None
    assert rollout.trajectory.turns[0].waited_s >= 6  # at no cost to the rollout's budget


async def test_a_rate_limit_without_end_fails_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_BUSY", 2)
    async with served(solves) as (api, client):
        api.statuses = [429, 429]
        (rollout,) = await finished(client, group())
    assert rollout.error is not None
    assert (rollout.error.kind, rollout.error.blame) == ("BackendBusy", Blame.BACKEND)


async def test_an_api_that_does_not_answer_in_time_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prorl_service.inference.engines.openai.CALL_TIMEOUT_S", 0.2)
    monkeypatch.setattr(session, "MAX_ATTEMPTS", 1)
    async with served(solves) as (api, client):
        api.latency_s = 60
        (rollout,) = await finished(client, group())
    assert rollout.error is not None
    assert rollout.error.blame is Blame.BACKEND
    assert "did not answer within" in rollout.error.message


async def test_a_wrong_key_ends_the_start_with_one_line_and_the_key_is_not_shown() -> None:
    async with StubApi(solves) as api:
        api.api_key = "right-key"
        settings = Settings(backends=(spec_of(api, api_key="wrong-key"),), sandbox="process")
        with pytest.raises(ProRLError) as refused:
            async with connected(settings):
                pass
        assert "401" in refused.value.message
        assert "PRORL_BACKEND_KEY" in refused.value.hint
        assert "wrong-key" not in f"{refused.value.message} {refused.value.hint}"
        settings = Settings(backends=(spec_of(api, api_key="right-key"),), sandbox="process")
        async with connected(settings) as client:
            (rollout,) = await finished(client, group())
    assert rollout.reward == 1.0
    assert "right-key" not in rollout.model_dump_json()


async def test_an_address_without_a_list_of_models_is_refused_with_the_way_to_write_it() -> None:
    async with StubApi(solves) as api:
        spec = spec_of(api, url=f"{api.url}/elsewhere")
        with pytest.raises(ProRLError, match="404") as refused:
            async with connected(Settings(backends=(spec,), sandbox="process")):
                pass
    assert "openai:MODEL@URL" in refused.value.hint


@pytest.mark.parametrize(
    "backend", ["openai:gpt", "openai:@http://host/v1", "openai:gpt@host/v1", "http://host/v1"]
)
def test_a_misspelt_address_is_one_line(backend: str) -> None:
    with pytest.raises(ProRLError, match="--backend: "):
        EngineOptions(backend=(backend,)).specs()


def test_a_name_may_have_any_signs() -> None:
    backend = "openai:org/model@v2:free@https://host.example/api/v1/"
    (spec,) = EngineOptions(backend=(backend,), tokenizer="org/tokenizer").specs()
    assert (spec.model, spec.url) == ("org/model@v2:free", "https://host.example/api/v1")
    assert spec.tokenizer == f"{PREFIX}org/tokenizer"


# --- what such rollouts are for -----------------------------------------------------------------


async def solved() -> list[Rollout]:
    async with served(solves) as (_, client):
        return await finished(client, group(n=3))


async def test_no_plug_in_and_no_helper_trains_on_them() -> None:
    rollouts = await solved()
    assert [one.reward for one in rollouts] == [1.0] * 3
    rows = [row for one in rollouts for row in rows_of(one, max_response_tokens=10_000)]
    completions = [row_of(one, eos_id=0, segments="longest", overlong="keep") for one in rollouts]
    assert len(rows) == 0
    assert [(sum(one.env_mask), one.reward) for one in completions] == [(0, None)] * 3
    for one in rollouts:
        failure = failure_of(one)
        assert failure is not None
        assert failure.kind == "NotSampledExactly"
        assert "stub, a model behind an API" in failure.message
        assert not any(map(any, trained_masks(one, cut_off="keep")))


async def test_their_text_is_exported_and_their_tokens_are_not() -> None:
    transcriber = Transcriber(ChatFormat.load(PREFIX))
    for one in await solved():
        record = ExportRecord(one)
        (row,) = sft.rows(record, transcriber)
        roles = ["system", "user", "assistant", "tool", "assistant"]
        assert [message["role"] for message in row["messages"]] == roles
        assert (row["is_trained"], row["exact"], row["whole"]) == (False, False, True)
        assert list(tokens.rows(record, all_segments=True)) == []
        ((_, document),) = atif.documents(record, transcriber)
        assert document["agent"]["model_name"] == "stub"
        told = [step["metrics"] for step in document["steps"] if "metrics" in step]
        assert len(told) == 2
        assert not any("completion_token_ids" in metrics for metrics in told)


async def test_a_training_cannot_claim_it_and_no_sampler_draws_from_it() -> None:
    async with served(solves) as (_, client):
        for refused in (
            client.claim_policy(PolicyClaim(training=training())),
            client.create_sampler("s", SamplerSpec()),
        ):
            with pytest.raises(ServiceCallError, match="stub, a model behind an API") as refusal:
                await refused
            assert refusal.value.error.kind == "NotTrainable"
            assert refusal.value.http_status == 409


async def test_engines_and_models_behind_an_api_are_not_mixed(tiny_model: Path) -> None:
    async with served(solves) as (_, client), StubEngine(tiny_model, lambda _: [0]) as engine:
        with pytest.raises(ServiceCallError, match="are not used together"):
            await client.add_backend(engine.url)
    async with (
        StubApi(solves) as api,
        StubEngine(tiny_model, lambda _: [0]) as engine,
        connected(Settings(sandbox="process")) as client,
    ):
        await client.add_backend(engine.url)
        with pytest.raises(ServiceCallError, match="are not used together"):
            await client.add_backend(f"{api.url}/v1", kind="openai", model="stub")
    with pytest.raises(ValidationError, match="belongs to kind openai"):
        BackendSpec(url="http://host:8000", model="stub")
    with pytest.raises(ValidationError, match="belongs to kind openai"):
        BackendSpec(url="http://host:8000", kind="openai")
