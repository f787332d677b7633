"""Texts at which a program wants replies to end: what is kept, told and continued."""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from prorl_service.gateway.dialects.fields import data
from prorl_service.tokens.chat import ChatFormat
from tests.gateway.rollouts import Rollout, rollout, thinking, tool_call
from tests.gateway.test_gateway import asked, post, results, user

STOP = "\nObservation:"
SAID = "Thought: look.\nAction: ls"
INVENTED = f"{SAID}{STOP} a secret.\nThought: done"


def kept(run: Rollout, turn: int = 0) -> str:
    """Returns the text of the ids in the ledger, which are the first that the engine sampled."""
    one, generation = run.attempt.turns[turn], run.engine.generations[turn]
    segment = run.attempt.ledger.to_segments()[one.segment]
    ids = list(segment.response_ids[one.start : one.stop])
    count = len(ids)
    assert ids == generation.token_ids[:count]
    assert list(segment.logprobs[one.start : one.stop]) == pytest.approx(
        generation.logprobs[:count]
    )
    assert list(segment.policy_versions[one.start : one.stop]) == generation.policy_versions[:count]
    assert sum(segment.loss_mask[one.start : one.stop]) == count
    return run.attempt.chat.decode(ids)


async def test_a_reply_ends_before_the_stop_and_its_ids_with_it(chat: ChatFormat) -> None:
    async with rollout(chat, [INVENTED, "Two files."]) as run:
        message = await post(run, asked(user("Go."), stop=[STOP]))
        assert message["content"] == SAID
        assert kept(run) == SAID + STOP
        assert (run.attempt.turns[0].text, run.attempt.turns[0].finish_reason) == (SAID, "stop")
        await post(run, asked(user("Go."), message, user("Observation: a, b")))
        assert run.segments == 1
        seen = chat.decode(run.engine.prompts[1])
        assert f"{SAID}{STOP}<|im_end|>\n<|im_start|>user\nObservation: a, b" in seen
        assert "secret" not in seen
        [mask] = [segment.loss_mask for segment in run.attempt.ledger.to_segments()]
        end = run.attempt.turns[0].stop
        assert not any(mask[end : run.attempt.turns[1].start])  # the template's end of the turn


async def whole(run: Rollout, path: str, **fields: Any) -> Any:
    body = {"model": "policy", "max_tokens": 500, "messages": [user("Go.")], **fields}
    async with httpx.AsyncClient(base_url=run.url, timeout=60) as http:
        answer = (await http.post(path, json=body)).raise_for_status()
    return answer.text if fields.get("stream") else answer.json()


async def test_programs_are_told_what_ended_a_reply(chat: ChatFormat) -> None:
    async with rollout(chat, [INVENTED] * 4) as run:
        stops: Any = {"stop_sequences": ["never", STOP]}
        message = await whole(run, "/v1/messages", **stops)
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", STOP)
        stream = await whole(run, "/v1/messages", stream=True, **stops)
        ending = {"stop_reason": "stop_sequence", "stop_sequence": STOP}
        assert data({"delta": ending})[7:-3].decode() in stream
        ended = await whole(run, "/v1/messages")
        assert (ended["stop_reason"], ended["stop_sequence"]) == ("end_turn", None)
        [choice] = (await whole(run, "/v1/chat/completions", stop=STOP))["choices"]
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("reply", "calls", "text", "reasoning"),
    [
        (f"Look.{tool_call()}{STOP} none", ["bash"], "Look.", None),
        (f"Look.{tool_call(command='Observation: STOP now')}", [], "Look.<tool_call>", None),
        (thinking(f"I wait.{STOP} it came", "Yes."), [], None, "I wait."),
    ],
)
async def test_calls_before_a_stop_are_handed_out_and_those_cut_by_it_are_not(
    chat: ChatFormat, reply: str, calls: Sequence[str], text: str | None, reasoning: str | None
) -> None:
    async with rollout(chat, [reply, "Then."]) as run:
        said = await post(run, asked(user("Go."), stop=[STOP, "STOP"]))
        assert [one["function"]["name"] for one in said.get("tool_calls", [])] == calls
        assert (said["content"] or "").startswith(text or "")
        assert said.get("reasoning_content") == reasoning
        then = results(said) if calls else [user("So?")]
        await post(run, asked(user("Go."), said, *then, stop=[STOP]))
        assert run.segments == 1
        assert kept(run).endswith(("STOP", STOP))


async def test_a_stop_beyond_the_limit_of_tokens_ends_nothing(chat: ChatFormat) -> None:
    async with rollout(chat, [INVENTED]) as run:
        [choice] = (await whole(run, "/v1/chat/completions", stop=STOP, max_tokens=9))["choices"]
        assert choice["finish_reason"] == "length"
        assert kept(run) == INVENTED[:9]
