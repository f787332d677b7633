"""One rollout as people see it over HTTP: its conversation and tokens, in flight and afterwards."""

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import httpx
import pytest

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.pipeline.config import PipelineConfig
from prorl_service.schemas import (
    NOT_SAMPLED,
    BackendSpec,
    FinishReason,
    RolloutState,
)
from prorl_service.schemas.arrays import PACKED_MEDIA_TYPE
from prorl_service.schemas.views import GroupOutcome, GroupQuery
from prorl_service.shelf.policy import ShelfOptions
from prorl_service.testing import StubEngine
from prorl_service.tokens.chat import ChatFormat
from tests.server.application import Settings, connected, finished, group, serving, until
from tests.server.scored_agent import scored

NOTHING_WHOLE = ShelfOptions(shelf_sample=0, shelf_first=0)


# --- one rollout --------------------------------------------------------------------------------


@pytest.mark.processes
async def test_a_rollout_is_shown_as_a_conversation_with_its_verdict(
    client: AsyncRolloutClient,
) -> None:
    (rollout, _) = await finished(client, group(n=2))
    text = await client.text("g.0")
    assert [message.role for message in text.prompt] == ["system", "user"]
    assert text.prompt[1].content == "What is the secret number?"
    assert [tool["function"]["name"] for tool in text.tools] == ["bash"]
    assert text.task.data["answer"] == "4711"
    first, last = text.turns
    assert (first.reasoning, first.text.strip()) == ("é?", "I look.")
    (call,) = first.tool_calls
    assert (call.name, call.arguments, call.output) == ("bash", {"command": "cat secret"}, "4711")
    assert (last.text, last.tool_calls, last.given) == ("\\boxed{4711}", [], None)
    assert first.sampled_tokens + last.sampled_tokens == text.rollout.sampled_tokens
    assert text.rollout.finish_reason is FinishReason.FINISHED
    assert text.rollout.reward == rollout.reward == 1.0
    assert text.rollout.reward_components["well_formed"] == 1.0
    assert [(one.rollout_id, one.reward) for one in text.siblings] == [("g.0", 1), ("g.1", 1)]
    assert text.notice == ""


async def test_an_acknowledged_rollout_is_shown_unchanged_and_answered_with_the_same_bytes(
    client: AsyncRolloutClient, url: str
) -> None:
    await finished(client, group(n=2))
    await until(client.rollouts, lambda found: all(one.kept_for for one in found.rollouts))
    async with httpx.AsyncClient(base_url=url) as http:

        async def seen() -> tuple[object, ...]:
            packed = {"Accept": PACKED_MEDIA_TYPE}
            answers = [await http.get("/v1/rollouts/g.0", headers=one) for one in ({}, packed)]
            return await client.text("g.0"), *(one.content for one in answers)

        before = await seen()
        await client.acknowledge(["g"])
        assert await seen() == before
        refused = await http.get("/v1/rollouts/g.0", params={"shelf": False})
    assert refused.status_code == 404
    with pytest.raises(ServiceCallError, match="or was forgotten: it was acknowledged"):
        await client.get("g.0", shelf=False)


@pytest.fixture
async def waiting_engine(tiny_model: Path, chat: ChatFormat) -> AsyncIterator[StubEngine]:
    """Answers the first call with a tool call, the second not at all."""

    def answer(prompt: list[int]) -> list[int]:
        stub.latency_s = 3600
        call = '{"name": "bash", "arguments": {"command": "echo so far"}}'
        return [*chat.encode(f"<tool_call>\n{call}\n</tool_call>"), chat.end_of_turn_id]

    async with StubEngine(tiny_model, answer) as stub:
        yield stub


@pytest.mark.processes
async def test_a_running_rollout_is_shown_so_far(
    waiting_engine: StubEngine, settings: Settings
) -> None:
    settings = replace(settings, backends=(BackendSpec(url=waiting_engine.url),))
    async with serving(settings) as url, AsyncRolloutClient(url, retry_s=0) as client:
        await client.submit([group()])
        # A call that is written and not yet made is shown without an output.
        await until(
            lambda: client.text("g.0"),
            lambda text: any(call.output for turn in text.turns for call in turn.tool_calls),
        )
        text = await client.text("g.0")
        (turn,) = text.turns
        assert turn.tool_calls[0].output == "so far"
        assert text.rollout.state is RolloutState.RUNNING
        assert (text.rollout.turns, text.rollout.ended_at, text.rollout.finish_reason) == (
            1,
            None,
            None,
        )
        (row,) = (await client.rollouts()).rollouts
        assert row.sampled_tokens == turn.sampled_tokens
        tokens = await client.tokens("g.0", start=text.segments[0].prompt_tokens)
        assert "".join(tokens.texts[: turn.sampled_tokens - 1]) == turn.raw
        assert set(tokens.mask) == {1}
        (listed,) = (await client.groups(GroupQuery(state=[RolloutState.RUNNING]))).groups
        assert (listed.states, listed.outcome) == ([RolloutState.RUNNING], GroupOutcome.OPEN)
        await client.cancel(["g.0"])


async def test_a_queued_rollout_shows_its_prompt(settings: Settings) -> None:
    one_at_a_time = PipelineConfig(init_workers=1, run_workers=1, ready_rollouts=1)
    async with connected(replace(settings, pipeline=one_at_a_time)) as client:
        await client.submit([scored(f"slow{i}", 0, sleep=1000) for i in range(4)])
        await client.submit([group("last")])
        text = await client.text("last.0")
        assert (text.rollout.state, text.rollout.turns) == (RolloutState.QUEUED, 0)
        assert (text.turns, text.segments, text.report) == ([], [], None)
        assert text.prompt[-1].content == "What is the secret number?"
        await client.cancel([*(f"slow{i}.0" for i in range(4)), "last.0"])


@pytest.mark.processes
async def test_looking_at_a_rollout_does_not_renew_its_lease(
    client: AsyncRolloutClient, engine: StubEngine
) -> None:
    engine.latency_s = 3600
    leased = group().model_copy(update={"lease_s": 0.5})
    await client.submit([leased])

    async def is_reclaimed() -> bool:
        await client.text("g.0")
        await client.groups()
        (row,) = (await client.rollouts()).rollouts
        assert row.state is not RolloutState.FAILED
        return row.state is RolloutState.CANCELLED

    await until(is_reclaimed)


@pytest.mark.processes
async def test_tokens_come_in_slices_that_make_up_the_segment(client: AsyncRolloutClient) -> None:
    (rollout,) = await finished(client, group())
    assert rollout.trajectory is not None
    (segment,) = rollout.trajectory.segments
    slices = []
    start, length = 0, 1
    while start < length:
        slices.append(await client.tokens("g.0", start=start, n=100))
        start, length = start + len(slices[-1].ids), slices[-1].length
    ids = list(chain.from_iterable(one.ids for one in slices))
    assert ids == [*segment.prompt_ids, *segment.response_ids]
    rest = len(segment.prompt_ids)
    mask = list(chain.from_iterable(one.mask for one in slices))
    logprobs = list(chain.from_iterable(one.logprobs for one in slices))
    versions = list(chain.from_iterable(one.versions for one in slices))
    assert mask[rest:] == segment.loss_mask
    assert set(mask[:rest]) == {0}
    assert [one or 0.0 for one in logprobs[rest:]] == segment.logprobs
    assert [NOT_SAMPLED if one is None else one for one in versions[rest:]] == (
        segment.policy_versions
    )
    assert {one.prompt_tokens for one in slices} == {rest}
    assert (await client.tokens("g.0", start=10**6)).ids == []
    with pytest.raises(ServiceCallError, match="has 1 segments") as refusal:
        await client.tokens("g.0", segment=1)
    assert refusal.value.http_status == 422


@pytest.mark.processes
async def test_a_character_of_several_tokens_is_shown_as_its_bytes(
    client: AsyncRolloutClient,
) -> None:
    await finished(client, group())
    tokens = await client.tokens("g.0", n=4096)
    shown = [tokens.texts[place] for place in tokens.partial]
    assert shown == [r"\xc3", r"\xa9"]


# --- what is not there --------------------------------------------------------------------------


async def refusal_of(client: AsyncRolloutClient, rollout_id: str) -> str:
    """The same for all that shows one rollout."""
    refusals = set()
    for ask in (client.text, client.tokens, client.get):
        with pytest.raises(ServiceCallError) as refusal:
            await ask(rollout_id)
        assert refusal.value.http_status == 404
        refusals.add(f"{refusal.value.error.message} | {refusal.value.hint}")
    (said,) = refusals
    return said


async def test_a_404_says_why(settings: Settings) -> None:
    async with connected(replace(settings, shelf=NOTHING_WHOLE), retry_s=0) as client:
        assert "never submitted" in await refusal_of(client, "g.0")
        await finished(client, scored("g", 1))
        assert (await client.text("g.0")).rollout.has_content, "the journal has it"
        await client.acknowledge(["g"])
        said = await refusal_of(client, "g.0")
        assert said.startswith("rollout 'g.0' was acknowledged, and the shelf kept only its row")
        assert "--shelf-sample 1" in said
        (row,) = (await client.rollouts()).rollouts
        assert (row.state, row.reward, row.has_content) == (RolloutState.DONE, 1.0, False)


async def test_a_service_without_a_shelf_says_so(settings: Settings) -> None:
    async with connected(replace(settings, shelf=ShelfOptions(shelf_mb=0)), retry_s=0) as client:
        await client.submit([scored("slow", 1, 0, sleep=1000), scored("g", 1)])
        await client.wait(["g.0"], 60)
        rows = await client.rollouts()
        assert {one.group_id for one in rows.rollouts} == {"slow"}
        assert "the shelf is off" in rows.notice
        assert (await client.text("g.0")).rollout.reward == 1.0, "the journal has it"
        assert [one.state for one in (await client.text("slow.0")).siblings] != [None, None]
        await client.acknowledge(["g"])
        assert "the shelf is off" in await refusal_of(client, "g.0")
        assert (await client.status()).shelf is None
        assert (await client.training()).notice == rows.notice
        await client.cancel(["slow.0", "slow.1"])


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("groups?limit=0", "limit"),
        ("groups?limit=501", "limit"),
        ("groups?state=sleeping", "state.0"),
        ("groups?outcome=good", "outcome.0"),
        ("groups?before=x", "before"),
        ("rollouts?before=W10=", "before"),
        ("rollouts?blame=me", "blame.0"),
        ("rollouts?policy_version=-1", "policy_version"),
        ("rollouts?reward_min=nan", "reward_min"),
        ("rollouts?polcy_version=7", "polcy_version"),
        ("rollouts/g.0/tokens?n=4097", "n"),
        ("rollouts/g.0/tokens?start=-1", "start"),
        ("rollouts/g%20/text", "rollout_id"),
    ],
)
async def test_invalid_queries_name_the_field(
    url: str, client: AsyncRolloutClient, path: str, field: str
) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        answer = await http.get(f"/v1/{path}")
    assert answer.status_code == 422, answer.text
    assert [one["field"] for one in answer.json()["error"]["fields"]] == [field]
