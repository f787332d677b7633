"""What the official clients of OpenAI and Anthropic are told beside replies: numbers, errors."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest

from prorl_service.schemas import FinishReason
from prorl_service.tokens.chat import ChatFormat
from tests.gateway.rollouts import Rollout, rollout

ASKED = "Which files are there?"


@pytest.fixture
async def run(chat: ChatFormat) -> AsyncIterator[Rollout]:
    async with rollout(chat, ["One.", "Two.", "Three."]) as running:
        yield running


@asynccontextmanager
async def clients(
    run: Rollout,
) -> AsyncIterator[tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic]]:
    async with (
        openai.AsyncOpenAI(base_url=f"{run.url}/v1", api_key="x", max_retries=0) as of_openai,
        anthropic.AsyncAnthropic(base_url=run.url, api_key="x", max_retries=0) as of_anthropic,
    ):
        yield of_openai, of_anthropic


@pytest.fixture
async def openai_client(run: Rollout) -> AsyncIterator[openai.AsyncOpenAI]:
    async with clients(run) as (client, _):
        yield client


@pytest.fixture
async def anthropic_client(run: Rollout) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with clients(run) as (_, client):
        yield client


async def test_the_prompt_of_a_request_is_counted(
    run: Rollout, openai_client: openai.AsyncOpenAI, anthropic_client: anthropic.AsyncAnthropic
) -> None:
    client = anthropic_client
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    counted = await client.messages.count_tokens(model="policy", messages=messages)
    await client.messages.create(model="policy", max_tokens=100, messages=messages)
    assert counted.input_tokens == len(run.engine.prompts[0])
    completion = await openai_client.chat.completions.create(model="policy", messages=messages)
    response = await openai_client.responses.create(model="policy", input=ASKED)
    assert completion.usage is not None
    assert response.usage is not None
    assert completion.usage.prompt_tokens == response.usage.input_tokens == counted.input_tokens
    [model] = (await openai_client.models.list()).data
    assert model.id == "policy"


async def test_refusals_are_errors_that_clients_know(chat: ChatFormat) -> None:
    async with rollout(chat, ["one"], max_model_len=64, max_turns=1) as run:
        async with clients(run) as (of_openai, of_anthropic):
            await _refusals(run, of_openai, of_anthropic)
        run.assert_exact()


async def _refusals(
    run: Rollout, of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic
) -> None:
    asked: Any = {"model": "policy", "max_tokens": 10}
    long: Any = [{"role": "user", "content": "x" * 500}]
    with pytest.raises(openai.BadRequestError) as refused:
        await of_openai.chat.completions.create(**asked, messages=long)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 64"):
        await of_anthropic.messages.create(**asked, messages=long)
    short: Any = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.BadRequestError, match="one reply a call"):
        await of_openai.chat.completions.create(**asked, messages=short, n=2)
    await of_openai.chat.completions.create(**asked, messages=short)
    with pytest.raises(anthropic.PermissionDeniedError, match="max_turns"):
        await of_anthropic.messages.create(**asked, messages=short)
    assert run.gateway.finish.result() is FinishReason.MAX_TURNS
