"""Programs that run elsewhere: a URL and a key for each rollout, at a real service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anthropic
import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion

from prorl_service.client import AsyncRolloutClient
from prorl_service.client.errors import ServiceCallError
from prorl_service.schemas import FinishReason, GatewayAccess, Group, Limits, Message, Task
from prorl_service.testing.scripted_engine import scripted_engine
from tests.parts import trajectory_of
from tests.server.application import Settings, finished, serving

pytestmark = pytest.mark.processes

TASK = Task(
    task_id="t",
    agent="harness",
    messages=[Message(role="user", content="What is 6 * 7?")],
    data={"where": "outside", "agent": "math", "data": {"answer": "42"}},
)


@dataclass(frozen=True, slots=True)
class World:
    client: AsyncRolloutClient
    group: Group
    access: GatewayAccess

    async def asked(self, text: str = "Begin.", key: str | None = None) -> ChatCompletion:
        key = self.access.key if key is None else key
        base_url = f"{self.access.url}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as model:
            return await model.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": text}]
            )


@asynccontextmanager
async def world(replies: list[str], **limits: int) -> AsyncIterator[World]:
    async with (
        scripted_engine([replies]) as engine,
        serving(Settings(backends=(engine.spec,), sandbox="process")) as url,
        AsyncRolloutClient(url) as client,
    ):
        group = Group(group_id="g", task=TASK, limits=Limits(**limits))
        await client.submit([group])
        yield World(client, group, await client.gateway("g.0", wait_s=30))


async def test_a_program_elsewhere_is_graded_when_it_says_that_it_has_ended() -> None:
    async with world(["Let me think.", "It is \\boxed{42}."]) as here:
        assert (await here.asked()).choices[0].message.content == "Let me think."
        async with anthropic.AsyncAnthropic(
            base_url=here.access.url, api_key=here.access.key
        ) as model:
            reply = await model.messages.create(
                model="policy", max_tokens=99, messages=[{"role": "user", "content": "And now?"}]
            )
        assert [part.text for part in reply.content if part.type == "text"] == [
            "It is \\boxed{42}."
        ]
        await here.client.end_gateway("g.0")
        [rollout] = await finished(here.client, here.group)
        assert rollout.error is None
        assert rollout.reward == 1.0
        assert trajectory_of(rollout).finish_reason is FinishReason.FINISHED
        assert len(trajectory_of(rollout).segments) == 2  # two conversations
        with pytest.raises(openai.InternalServerError):  # it is over
            await here.asked()


async def test_only_the_rollouts_own_key_opens_its_gateway() -> None:
    async with world(["It is \\boxed{42}."]) as here, httpx.AsyncClient() as http:
        key, url = here.access.key, here.access.url

        async def status(rollout: str = "g.0", **headers: str) -> int:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            address = f"{url.removesuffix('g.0')}{rollout}/v1/models"
            return (await http.get(address, headers=named)).status_code

        with pytest.raises(openai.AuthenticationError):
            await here.asked(key="policy")
        for bearer in (f"Bearer {key}", f"bearer {key}", f"BEARER  {key}"):
            assert await status(authorization=bearer) == 200
            assert await status(authorization=bearer, x_api_key="sk-another") == 200
        assert await status(x_api_key=key) == 200
        assert await status(x_api_key=key, authorization="Bearer sk-another") == 200
        assert await status(authorization=f"Basic {key}") == 401
        assert await status(authorization=key) == 401
        assert await status(authorization="Bearer", x_api_key="") == 401
        assert await status() == 401
        # A request without a key learns nothing about rollouts.
        for rollout in ("g.0", "g.1", "no.0"):
            assert await status(rollout, x_api_key="policy") == 401
        assert await status("g.1", x_api_key=key) == 401
        await here.client.cancel(["g.0"])
        while await status(x_api_key=key) != 503:
            pass  # until its gateway has been closed


async def test_bodies_are_limited_as_in_a_sandbox() -> None:
    async with world(["It is \\boxed{42}."]) as here, httpx.AsyncClient() as http:

        async def body() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b" " * (1 << 20)

        headers = {"x-api-key": here.access.key}
        address = f"{here.access.url}/v1/messages"
        answer = await http.post(address, content=body(), headers=headers)
        assert answer.status_code == 413
        assert answer.json()["type"] == "error"
        assert "the body is larger than" in answer.json()["error"]["message"]
        await here.client.cancel(["g.0"])


async def test_a_budget_ends_it() -> None:
    async with world(["One.", "Two."], max_turns=1) as here:
        await here.asked()
        with pytest.raises(openai.PermissionDeniedError):
            await here.asked("More.")
        [rollout] = await finished(here.client, here.group)
        assert trajectory_of(rollout).finish_reason is FinishReason.MAX_TURNS


async def test_there_is_no_gateway_for_a_rollout_that_is_not_in_run() -> None:
    async with world(["It is \\boxed{42}."]) as here:
        await here.asked()
        await here.client.end_gateway("g.0")
        await finished(here.client, here.group)
        with pytest.raises(ServiceCallError, match="has no gateway now"):
            await here.client.gateway("g.0", wait_s=0)
