"""What a collector gets of a service's rollouts."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from prorl_service import __version__
from prorl_service.client import AsyncRolloutClient
from prorl_service.schemas import Rollout, RolloutState, Stage
from prorl_service.testing import StubEngine
from prorl_service.traces.spans import is_traced
from tests.parts import trajectory_of
from tests.server.application import finished, group, until
from tests.traces.agents import ERRORS, telling
from tests.traces.collector import Collector, Received
from tests.traces.conftest import service

pytestmark = pytest.mark.processes

SPANS_OF_TWO_TURNS = 7
"""The rollout, three stages, two model calls, one tool call."""
RLO = "\u202e"
HOSTILE = f"<script>alert(1)</script>\x1b]0;title\x07 {RLO} \x00 ümläut {'x' * 100_000}"


async def received(collector: Collector, rollouts: int) -> list[Received]:
    return await asyncio.to_thread(collector.wait_for, rollouts)


def names(spans: list[Received]) -> list[str]:
    return [one.name for one in spans]


async def test_a_rollout_is_a_tree_of_stages_and_calls(
    client: AsyncRolloutClient, collector: Collector, engine: StubEngine
) -> None:
    (rollout,) = await finished(client, group())
    spans = await received(collector, 1)
    assert len(spans) == SPANS_OF_TWO_TURNS
    (root,) = collector.roots()
    assert (root.name, root.parent_id, root.is_error) == ("invoke_agent math", "", False)
    assert names(collector.below(root)) == ["prorl.init", "prorl.run", "prorl.eval"]
    run = collector.below(root)[1]
    assert names(collector.below(run)) == ["chat stub", "execute_tool bash", "chat stub"]
    assert {one.trace_id for one in spans} == {root.trace_id}
    by_id = {one.span_id: one for one in spans}
    for one in spans:
        assert one.start <= one.end
        if one is not root:
            above = by_id[one.parent_id]
            assert above.start <= one.start
            assert one.end <= above.end + 1e-3
    assert abs(root.start - rollout.created_at) < 1e-3
    assert collector.resource["service.name"] == "prorl"
    assert collector.resource["service.version"] == __version__
    assert collector.resource["prorl.run.name"] == (await client.status()).run
    assert_attributes_of_the_conventions(rollout, collector, engine)


def assert_attributes_of_the_conventions(
    rollout: Rollout, collector: Collector, engine: StubEngine
) -> None:
    (root,) = collector.roots()
    assert root.attributes.items() >= {
        ("gen_ai.operation.name", "invoke_agent"),
        ("gen_ai.agent.name", "math"),
        ("gen_ai.conversation.id", "g.0"),
        ("gen_ai.request.model", "stub"),
        ("prorl.group_id", "g"),
        ("prorl.task_id", "read"),
        ("prorl.attempt", 1),
        ("prorl.state", "done"),
        ("prorl.finish_reason", "finished"),
        ("prorl.policy_version.min", 0),
        ("prorl.turns", 2),
    }
    scores = [event["gen_ai.evaluation.name"] for name, event in root.events]
    assert scores == ["reward", *rollout.reward_components]
    assert root.events[0] == (
        "gen_ai.evaluation.result",
        {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": rollout.reward},
    )
    calls = collector.below(collector.below(root)[1])
    segment = trajectory_of(rollout).segments[0]
    for chat, turn in zip([calls[0], calls[2]], trajectory_of(rollout).turns, strict=True):
        expected = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "prorl",
            "gen_ai.request.model": "stub",
            "gen_ai.request.temperature": 1.0,
            "gen_ai.request.top_p": 1.0,
            "gen_ai.response.finish_reasons": ["stop"],
            "gen_ai.usage.input_tokens": len(segment.prompt_ids) + turn.start,
            "gen_ai.usage.output_tokens": turn.stop - turn.start,
            "gen_ai.usage.cache_read.input_tokens": 0,
            "server.address": "127.0.0.1",
            "server.port": int(engine.url.rpartition(":")[2]),
            "prorl.policy_version": 0,
        }
        assert {name: chat.attributes[name] for name in expected} == expected
        assert chat.is_client
    assert calls[1].attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "bash",
        "gen_ai.tool.type": "function",
    }


@pytest.mark.parametrize("stage", Stage)
async def test_a_failure_is_the_status_of_its_stage_with_its_blame(
    stage: Stage, client: AsyncRolloutClient, collector: Collector
) -> None:
    failing = [telling(one.value, fails_in=stage.value, blame=one.value) for one in ERRORS]
    await client.submit(failing)
    await received(collector, len(failing))
    roots = {one.attributes["prorl.group_id"]: one for one in collector.roots()}
    for blame, error in ERRORS.items():
        root = roots[blame.value]
        *well, failed = collector.below(root)
        assert failed.name == f"prorl.{stage.value}"
        assert not any(one.is_error for one in well)
        for one in (root, failed):
            assert (one.is_error, one.message) == (True, f"{blame.value}: as it \\x1b[31mshould")
            assert one.attributes["prorl.blame"] == blame.value
            assert one.attributes["error.type"] == error.__name__
        assert root.attributes["prorl.state"] == "failed"
        assert root.events == []
        of_it = [one for one in collector.spans if one.trace_id == root.trace_id]
        has_sampled = stage is not Stage.INIT
        assert sum(one.name == "chat stub" for one in of_it) == has_sampled


async def test_a_rollout_that_never_ran_is_a_single_span(
    client: AsyncRolloutClient, collector: Collector
) -> None:
    wrong = telling("g").model_copy(deep=True)
    wrong.task.agent = "nobody"
    await client.submit([wrong], invalid="fail")
    (span,) = await received(collector, 1)
    assert span.is_error
    assert span.attributes["prorl.blame"] == "task"


async def test_retried_attempts_are_spans_with_their_reason(
    client: AsyncRolloutClient, collector: Collector, engine: StubEngine
) -> None:
    engine.generate_status = 500
    submitted = telling("g")
    await client.submit([submitted])
    await until(lambda: client.get("g.0"), lambda rollout: len(rollout.stages) == 2)
    engine.generate_status = 200
    (rollout,) = await client.wait(["g.0"], 60)
    await received(collector, 1)
    (root,) = collector.roots()
    visits = collector.below(root)
    expected = ["prorl.init", "prorl.run", "prorl.init", "prorl.run", "prorl.eval"]
    assert names(visits) == expected
    assert [one.attributes["prorl.attempt"] for one in visits] == [1, 1, 2, 2, 2]
    assert [one.is_error for one in visits] == [False, True, False, False, False]
    assert visits[1].attributes["prorl.blame"] == "backend"
    assert not root.is_error
    assert names(collector.below(visits[3])) == ["chat stub"]
    assert rollout.attempt == 2


async def test_cancelled_rollouts_are_not_failures(
    client: AsyncRolloutClient, collector: Collector
) -> None:
    await client.submit([telling("g", sleep=60)])
    await until(lambda: client.get("g.0"), lambda rollout: rollout.state is RolloutState.RUNNING)
    await client.cancel(["g.0"])
    await received(collector, 1)
    (root,) = collector.roots()
    assert root.attributes["prorl.state"] == "cancelled"
    assert not any(one.is_error for one in collector.spans)


async def test_siblings_are_separate_traces_that_link_to_each_other(
    client: AsyncRolloutClient, collector: Collector
) -> None:
    await finished(client, telling("g", n=3))
    await received(collector, 3)
    own = {(one.trace_id, one.span_id) for one in collector.roots()}
    assert len({trace for trace, _ in own}) == 3
    for root in collector.roots():
        assert {*root.links} == own - {(root.trace_id, root.span_id)}


# --- content ------------------------------------------------------------------------------------


def hostile() -> dict[str, Any]:
    call = {"name": f"cat {HOSTILE}", "arguments": {"path": HOSTILE}, "output": HOSTILE}
    return {"prompt": HOSTILE[:200], "call": call, "report": {"why": HOSTILE}}


async def test_content_is_not_exported_by_default(
    client: AsyncRolloutClient, collector: Collector
) -> None:
    await finished(client, telling("g", **hostile()))
    spans = await received(collector, 1)
    exported = json.dumps([asdict(one) for one in spans])
    assert "script" not in exported
    assert "Go on" not in exported
    (tool,) = [one for one in spans if one.name.startswith("execute_tool")]
    assert tool.name == "execute_tool unknown"


async def test_hostile_content_is_exported_as_bounded_text_if_enabled(
    engine: StubEngine, collector: Collector, tmp_path: Path
) -> None:
    options = ("--otel-endpoint", collector.url, "--otel-content")
    async with (
        service(engine, tmp_path, *options) as running,
        AsyncRolloutClient(running.url) as client,
    ):
        (rollout,) = await finished(client, telling("g", **hostile()))
        assert rollout.state is RolloutState.DONE
        spans = await received(collector, 1)
    (root,) = collector.roots()
    (tool,) = [one for one in spans if one.name.startswith("execute_tool")]
    result = tool.attributes["gen_ai.tool.call.result"]
    assert result.startswith("<script>alert(1)</script>\\x1b]0;title\\x07 \\u202e \\x00 ümläut xx")
    assert "characters left out]" in result
    assert len(result) < 20_000
    (asked,) = json.loads(root.attributes["gen_ai.input.messages"])
    assert asked["role"] == "user"
    assert asked["parts"][0]["content"].startswith("<script>")
    (chat,) = [one for one in spans if one.name == "chat stub"]
    (said,) = json.loads(chat.attributes["gen_ai.output.messages"])
    assert [part["type"] for part in said["parts"]] == ["text", "tool_call"]
    assert root.events[0][1]["gen_ai.evaluation.explanation"].startswith('{"why": "<script>')
    assert_shows_no_tokens(rollout, spans)
    texts = [value for one in spans for value in one.attributes.values() if type(value) is str]
    assert not any(character in text for text in texts for character in f"\x1b\x07\x00{RLO}")


def assert_shows_no_tokens(rollout: Rollout, spans: list[Received]) -> None:
    """No list is longer than one reason, no number a logprob."""
    logprobs = {one for one in trajectory_of(rollout).segments[0].logprobs if one}
    values = [value for one in spans for value in one.attributes.values()]
    assert all(len(value) == 1 for value in values if isinstance(value, list))
    assert not logprobs & {value for value in values if isinstance(value, float)}


# --- sampling -----------------------------------------------------------------------------------


async def test_siblings_are_traced_together_or_not_at_all(
    engine: StubEngine, collector: Collector, tmp_path: Path
) -> None:
    groups = [telling(f"g{number}", n=2) for number in range(24)]
    traced = {one.group_id for one in groups if is_traced(one, 0.5)}
    assert 4 < len(traced) < 20
    options = ("--otel-endpoint", collector.url, "--otel-sample", "0.5")
    async with (
        service(engine, tmp_path, *options) as running,
        AsyncRolloutClient(running.url) as client,
    ):
        await client.submit(groups)
        await client.wait([one for group in groups for one in group.rollout_ids()], 120)
    # The service has ended: all that was to come has come.
    roots = [one.attributes["gen_ai.conversation.id"] for one in collector.roots()]
    assert sorted(roots) == sorted(f"{name}.{index}" for name in traced for index in range(2))
