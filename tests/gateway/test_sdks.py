"""Each method of the official SDKs, with an engine so slow that streams are kept alive."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from prorl_service.inference.base import Generation
from prorl_service.tokens.chat import ChatFormat
from tests.gateway.rollouts import Rollout, rollout
from tests.gateway.sdk_cases import CASES, WORK, Case, run
from tests.gateway.sdk_python import RESULTS

SLOW_S = 0.35


def slow_down(running: Rollout) -> None:
    """Has the engine sample for longer than a stream stays silent."""
    generate = running.engine.generate

    async def slowly(prompt_ids: Sequence[int], **options: Any) -> Generation:
        await asyncio.sleep(SLOW_S)
        return await generate(prompt_ids, **options)

    running.engine.generate = slowly  # type: ignore[method-assign]


def assert_one_conversation(run: Rollout) -> None:
    run.assert_exact()
    assert run.segments == 1
    text = run.attempt.chat.decode(run.engine.prompts[-1])
    for command, result in RESULTS.items():
        assert json.dumps(command) in text
        assert f"<tool_response>\n{result}\n</tool_response>" in text
    assert "I had better look. é" in text  # reasoning stays, whatever the client sends back
    outputs = [[call.output for call in turn.tool_calls] for turn in run.attempt.turns]
    assert outputs == [["a\nb"], ["/work", "today"], []]


@pytest.mark.harnesses
@pytest.mark.sampled(9)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.processes
async def test_a_method_does_its_work(
    case: Case, chat: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prorl_service.gateway.app.KEEP_ALIVE_S", 0.1)
    async with rollout(chat, case.replies) as running:
        slow_down(running)
        assert await run(case, running.url) == case.outcome
        running.assert_exact()
        counts = running.gateway.counts
        assert (running.segments, counts.refused, counts.errors) == (1, 0, 0)
        if case.replies is WORK:
            assert_one_conversation(running)
