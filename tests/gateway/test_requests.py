"""What requests may hold: whatever a program sends is read, or refused in its own dialect."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl_service.gateway.calls import CallReply, Refused, Usage
from prorl_service.gateway.dialects import DIALECTS, call_of
from prorl_service.tokens.chat import ChatFormat
from tests.gateway.rollouts import Rollout, rollout, tool_call
from tests.gateway.test_gateway import asked, post, results, user

REPLY = CallReply(name="0_a", model="policy", created_at=0, text="Yes.", usage=Usage(1, 1))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
SHOWN: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("requests.json").read_text())


@pytest.mark.parametrize("ending", sorted(SHOWN))
def test_wishes_of_common_programs_are_read_and_listed(ending: str) -> None:
    call = call_of(DIALECTS[ending], SHOWN[ending])
    assert "tool_choice" in call.without_effect
    assert {"response_format", "output_config", "text"} & {*call.without_effect}
    assert len(call.tools) == 1
    [kind, *_] = call.left_out
    [shown] = [one.message.content for one in call.conversation if one.message.role == "user"][:1]
    assert shown == f"See:[{kind}: left out, the model reads text only]"


@pytest.mark.parametrize("ending", sorted(SHOWN))
@pytest.mark.parametrize("choice", ["none", {"type": "none"}])
def test_a_reply_without_calls_is_sampled_without_tools(ending: str, choice: Any) -> None:
    call = call_of(DIALECTS[ending], {**SHOWN[ending], "tool_choice": choice})
    assert call.tools == []
    assert "tool_choice" not in call.without_effect


def test_logprobs_that_nobody_gets_are_listed() -> None:
    call = call_of(DIALECTS["/chat/completions"], asked(user("Go."), logprobs=True))
    assert call.without_effect == ("logprobs",)


SAYS = {"role": "assistant", "content": "{"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "the conversation is empty: it needs at least one message"),
        ([user("Go."), SAYS], "the last message is the assistant's, and replies cannot be pref"),
    ],
)
async def test_conversations_that_ask_for_nothing_are_refused(
    chat: ChatFormat, path: str, given: list[dict[str, Any]], said: str
) -> None:
    async with rollout(chat, []) as run, httpx.AsyncClient(base_url=run.url) as http:
        body = {"model": "policy", "max_tokens": 9, "messages": given, "input": given}
        answer = await http.post(path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
        assert error["message"].startswith(said)
        assert run.gateway.counts.refused == 1


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), ending=st.sampled_from(sorted(SHOWN)))
def test_any_value_in_any_place_is_read_or_refused(data: st.DataObject, ending: str) -> None:
    body = json.loads(json.dumps(SHOWN[ending]))
    for _ in range(data.draw(st.integers(1, 3))):
        _replace(body, data)
    dialect = DIALECTS[ending]
    try:
        call_of(dialect, body)
    except Refused as refusal:
        json.dumps(dialect.error(refusal))
        return
    list(dialect.events(REPLY, body))


def _replace(value: Any, data: st.DataObject) -> None:
    """Puts something else in a place of a list or an object."""
    while True:
        places = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not places:
            return
        place = data.draw(st.sampled_from(places))
        inner = value[place]
        if not isinstance(inner, dict | list) or data.draw(st.booleans()):
            value[place] = data.draw(JSON | st.text(max_size=2).map(lambda text: text + "\ud83d"))
            return
        value = inner


async def test_text_that_is_none_is_replaced_and_sampling_goes_on(chat: ChatFormat) -> None:
    """The policy wrote half of an emoji, as JSON; its harness reads it, and sends it back."""
    broken = '<tool_call>\n{"name": "bash", "arguments": {"command": "echo \\ud83d"}}\n</tool_call>'
    big = tool_call(n=2**80)
    async with rollout(chat, [broken, big, "Done."]) as run:
        history = [user("Begin.")]
        for _ in range(3):
            message = await post(run, asked(*history))
            history.append(message)
            if message.get("tool_calls"):
                history += results(message)
        assert message["content"] == "Done."
        run.assert_exact()


async def together(run: Rollout, requests: int) -> list[int]:
    """Returns the status of each of several long requests at once."""
    bodies = [asked(user(f"{number} " + "long " * 4000)) for number in range(requests)]
    return list(await asyncio.gather(*(status(run, body) for body in bodies)))


async def status(run: Rollout, body: dict[str, Any]) -> int:
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.post(run.url + "/v1/chat/completions", json=body)).status_code


async def test_parallel_calls_take_no_more_turns_than_there_are(chat: ChatFormat) -> None:
    async with rollout(chat, ["Yes."] * 10, max_turns=2) as run:
        found = await together(run, 10)
        assert sorted(found) == [200] * 2 + [403] * 8
        assert len(run.attempt.turns) == 2


async def test_parallel_calls_take_no_more_tokens_than_there_are(chat: ChatFormat) -> None:
    replies = ["word " * 20] * 10
    async with rollout(chat, replies, max_response_tokens=250) as run:
        found = await together(run, 10)
        sampled = sum(turn.stop - turn.start for turn in run.attempt.turns)
        assert 200 in found
        assert sampled <= 250
