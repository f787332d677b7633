"""One rollout's gateway: what is sampled once, what is cancelled, and what is exact in any case."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl_service.errors import BackendError
from prorl_service.gateway.dialects import chat as dialect
from prorl_service.gateway.rollout import RolloutGateway
from prorl_service.inference.base import Generation
from prorl_service.schemas import FinishReason
from prorl_service.tokens.chat import ChatFormat
from tests.gateway.rollouts import Rollout, rollout, thinking, tool_call
from tests.trl.base_model import with_split_eos

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
PATH = "/v1/chat/completions"
Json = dict[str, Any]


def asked(*messages: Json, **fields: Any) -> Json:
    return {"model": "policy", "messages": list(messages), "tools": TOOLS, **fields}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


async def post(run: Rollout, body: Json, *, retries: int = 0) -> Json:
    headers = {"x-stainless-retry-count": str(retries)}
    async with httpx.AsyncClient(base_url=run.url, timeout=60) as http:
        answer = await http.post(PATH, json=body, headers=headers)
        answer.raise_for_status()
        message: Json = answer.json()["choices"][0]["message"]
        return message


def results(message: Json, output: str = "done") -> list[Json]:
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": output}
        for call in message["tool_calls"]
    ]


class Slow:
    """Has an engine's calls wait until they are let go."""

    def __init__(self, run: Rollout) -> None:
        self.go = asyncio.Event()
        self.waiting = 0
        self.error: BackendError | None = None
        self._generate = run.engine.generate
        run.attempt.generator = self

    async def generate(self, prompt_ids: Sequence[int], **options: Any) -> Generation:
        self.waiting += 1
        await self.go.wait()
        self.waiting -= 1
        if self.error is not None:
            raise self.error
        return await self._generate(prompt_ids, **options)

    async def has(self, count: int) -> None:
        while self.waiting != count:  # noqa: ASYNC110 - only the test's timeout bounds it
            await asyncio.sleep(0.01)


# --- never two samples for one request ------------------------------------------------------------


async def test_the_same_request_joins_the_call_that_is_under_way(chat: ChatFormat) -> None:
    async with rollout(chat, ["one", "two"]) as run:
        slow = Slow(run)
        body = asked(user("Hello."))
        first = asyncio.create_task(post(run, body))
        await slow.has(1)
        second = asyncio.create_task(post(run, body, retries=1))
        while run.gateway.counts.repeated == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        slow.go.set()
        assert await first == await second
        assert (await post(run, body, retries=2))["content"] == "one"
        assert (await post(run, body))["content"] == "two"  # asked again on purpose
        assert len(run.engine.prompts) == 2
        run.assert_exact()


async def test_a_client_that_goes_away_cancels_its_call(chat: ChatFormat) -> None:
    async with rollout(chat, ["one"]) as run:
        slow = Slow(run)
        body = asked(user("Hello."))
        for is_streamed in (False, True):
            call = asyncio.create_task(post(run, body | {"stream": is_streamed}))
            await slow.has(1)
            call.cancel()
            while run.attempt.open_calls:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            slow.waiting = 0
        assert run.attempt.turns == []
        assert not run.gateway.finish.done()
        slow.go.set()
        assert (await post(run, body, retries=1))["content"] == "one"
        run.assert_exact()


@pytest.mark.parametrize(
    ("path", "first", "kept_alive"),
    [
        ("/v1/chat/completions", [None], None),
        ("/v1/responses", ["response.created", "response.in_progress"], "response.in_progress"),
        ("/v1/messages", ["ping"], "ping"),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
async def test_a_stream_that_waits_is_kept_alive(
    chat: ChatFormat,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    first: list[str | None],
    kept_alive: str | None,
    fails: bool,
) -> None:
    monkeypatch.setattr("prorl_service.gateway.app.KEEP_ALIVE_S", 0.05)
    async with rollout(chat, ["one"]) as run:
        slow = Slow(run)
        slow.error = BackendError("error") if fails else None
        given: Json = {"messages": [user("Hi.")], "input": "Hi."}
        body = {"model": "policy", "stream": True, "max_tokens": 9, **given}
        async with httpx.AsyncClient(base_url=run.url, timeout=60) as http:
            asking = asyncio.create_task(http.post(path, json=body))
            await slow.has(1)
            await asyncio.sleep(0.5)
            slow.go.set()
            answer = await asking
        if fails:
            assert run.gateway.finish.exception() is slow.error
    events = [_event(one) for one in answer.text.split("\n\n") if one]
    kinds = [kind for kind, _ in events]
    assert kinds[: len(first)] == first
    assert kinds.count(kept_alive) >= 2
    assert ("error" if fails else "one") in answer.text
    if path == "/v1/responses":
        assert [data["sequence_number"] for _, data in events] == [*range(len(events))]
        assert kinds.count("response.created") == 1
        assert len({data["response"]["id"] for _, data in events if "response" in data}) == 1
        assert kinds[-1] == f"response.{'failed' if fails else 'completed'}"


def _event(text: str) -> tuple[str | None, Json]:
    """Returns kind and data of an event; comments and most events of Chat have no kind."""
    fields = dict(line.split(": ", 1) for line in text.splitlines())
    data = fields.get("data", "{}")
    return fields.get("event"), {} if data == "[DONE]" else json.loads(data)


# --- conversations --------------------------------------------------------------------------------


async def test_sub_agents_call_at_the_same_time(chat: ChatFormat) -> None:
    delegates = "\n".join(tool_call("agent", task=name) for name in "ab")
    async with rollout(chat, [delegates, *["found it"] * 4, "All found."]) as run:
        main = [{"role": "system", "content": "Main."}, user("Find a and b.")]
        told = await post(run, asked(*main))
        slow = Slow(run)
        helpers = [
            asyncio.create_task(post(run, asked(user(f"Helper {name}."), user("Go."))))
            for name in "abcd"
        ]
        await slow.has(4)
        slow.go.set()
        assert {one["content"] for one in await asyncio.gather(*helpers)} == {"found it"}
        last = await post(run, asked(*main, told, *results(told, "found it")))
        assert last["content"] == "All found."
        assert run.segments == 5
        assert len(run.attempt.ledger.chains[0].ids) > len(run.engine.prompts[-1])
        run.assert_exact()


@pytest.mark.parametrize(
    ("change", "segments"),
    [
        (lambda said: said | {"content": None, "reasoning_content": None}, 1),
        (lambda said: said | {"content": "Said otherwise."}, 1),
        (lambda said: said | {"tool_calls": [_renamed(one) for one in said["tool_calls"]]}, 1),
        (lambda said: {"role": "assistant", "content": "It was all text."}, 2),
    ],
)
async def test_a_turn_is_known_by_its_calls(chat: ChatFormat, change: Any, segments: int) -> None:
    async with rollout(chat, [thinking("Hm.", f"So. {tool_call()}"), "Yes."]) as run:
        question = user("Is it so?")
        said = await post(run, asked(question))
        back = change(said)
        answers = results(said) if "tool_calls" in back else [user("done")]
        await post(run, asked(question, back, *answers))
        assert run.segments == segments
        run.assert_exact()


def _renamed(call: Json) -> Json:
    return call | {"function": {"name": "invalid", "arguments": '{"repaired": true}'}}


async def test_another_list_of_tools_is_another_conversation(chat: ChatFormat) -> None:
    async with rollout(chat, ["One.", "Two."]) as run:
        said = await post(run, asked(user("Hi.")))
        await post(run, asked(user("Hi."), said, user("And?")) | {"tools": []})
        assert run.segments == 2
        run.assert_exact()


# --- broken calls, limits -------------------------------------------------------------------------


async def test_a_broken_call_reaches_the_harness_as_it_was_written(chat: ChatFormat) -> None:
    broken = '<tool_call>\n{"name": "bash", "arguments": {"command": "echo}}\n</tool_call>'
    async with rollout(chat, [f"So.\n{tool_call(n=1)}\n{broken}", "Sorry."]) as run:
        said = await post(run, asked(user("Go.")))
        calls = [call["function"] for call in said["tool_calls"]]
        assert calls == [
            {"name": "bash", "arguments": '{"n": 1}'},
            {"name": "bash", "arguments": '{"command": "echo}'},
        ]
        await post(run, asked(user("Go."), said, *results(said, "not JSON")))
        assert run.segments == 1
        assert run.gateway.counts.broken_calls == 1
        assert run.attempt.turns[0].format_error is not None
        run.assert_exact()


@pytest.mark.parametrize("also", ["", tool_call(n=1)])
async def test_a_broken_call_that_json_cannot_carry_is_text_as_it_was_written(
    chat: ChatFormat, also: str
) -> None:
    broken = '<tool_call>\n{"name": "bash", "arguments": {"command": "echo}}\n</tool_call>'
    asking = {"model": "policy", "max_tokens": 500, "tools": [{"name": "bash", "input_schema": {}}]}
    async with rollout(chat, [f"So.{also}{broken}", "Sorry."]) as run:
        async with httpx.AsyncClient(base_url=run.url, timeout=60) as http:
            body = {**asking, "messages": [user("Go.")]}
            said = (await http.post("/v1/messages", json=body)).json()
            assert said["content"][0]["text"] == f"So.\n{broken}"
            ids = [one["id"] for one in said["content"][1:]]
            assert len(ids) == bool(also)
            told = [{"type": "tool_result", "tool_use_id": one, "content": "no"} for one in ids]
            history = [user("Go."), {"role": "assistant", "content": said["content"]}]
            again = {"role": "user", "content": [*told, {"type": "text", "text": "Try again."}]}
            await http.post("/v1/messages", json={**asking, "messages": [*history, again]})
        assert run.segments == 1
        assert run.gateway.counts.broken_calls == 1


async def test_a_turn_is_restated_once(chat: ChatFormat) -> None:
    async with rollout(chat, [f"So. {tool_call()}", "One.", "Two.", "Three."]) as run:
        said = await post(run, asked(user("Go.")))
        history = [user("Go."), said | {"content": "Otherwise."}, *results(said)]
        for number in range(3):
            history += [await post(run, asked(*history)), user(f"More {number}.")]
        assert run.gateway.mark((), "")["restated"] == 1


async def test_calls_that_nobody_received_spend_no_turns(chat: ChatFormat) -> None:
    async with rollout(chat, ["one"], max_turns=1) as run:
        slow = Slow(run)
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                async with httpx.AsyncClient(base_url=run.url, timeout=0.2) as http:
                    await http.post(PATH, json=asked(user("Go.")))
            while run.attempt.open_calls:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        slow.go.set()
        assert (await post(run, asked(user("Go."))))["content"] == "one"
        assert not run.gateway.finish.done()


async def test_budgets_end_the_rollout_for_all_conversations(chat: ChatFormat) -> None:
    async with rollout(chat, ["a", "b", "c"], max_turns=2) as run:
        for text in ("one", "two"):
            await post(run, asked(user(text)))
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            await post(run, asked(user("three")))
        assert run.gateway.finish.result() is FinishReason.MAX_TURNS
    async with rollout(chat, ["long " * 20, "b"], max_response_tokens=8) as run:
        await post(run, asked(user("one")))
        assert run.attempt.turns[0].stop == 8
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            await post(run, asked(user("two")))
        assert run.gateway.finish.result() is FinishReason.LENGTH
        run.assert_exact()


# --- exactness ------------------------------------------------------------------------------------

EDITS = ("as it is", "drop reasoning", "strip", "rewrite", "swap results", "forget", "as text")


@pytest.fixture(scope="module")
def base_chat(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    model = with_split_eos(tiny_model, tmp_path_factory.mktemp("base") / "model")
    return ChatFormat.load(model)


@pytest.mark.slow
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
async def test_any_edit_of_history_is_exact(base_chat: ChatFormat, data: st.DataObject) -> None:
    """Drives the gateway without HTTP, as a harness that restates its history at random. The model
    is a base model, and ends a reply as its template does, or with its own end token."""
    said = st.sampled_from(
        ["Done.", " two  spaces ", tool_call(), thinking("é?", tool_call(n=1) + tool_call(n=2))]
    )
    replies = data.draw(st.lists(said, min_size=2, max_size=8))
    ends = st.sampled_from(sorted(base_chat.end_ids))
    answers = [[*base_chat.encode(one), data.draw(ends)] for one in replies]
    async with rollout(base_chat, answers) as run:
        history = [user("Begin.")]
        for number in range(len(replies)):
            edit = data.draw(st.sampled_from(EDITS))
            body = asked(*_edited(history, edit))
            message = await _answered(run.gateway, body, bytes([number]))
            history.append(message)
            history += results(message) if message.get("tool_calls") else [user(f"Next {number}.")]
        run.assert_exact()


async def _answered(gateway: RolloutGateway, body: Json, key: bytes) -> Json:
    reply = await gateway.answer(dialect.request(body), gateway.begun(), key=key, is_repeated=False)
    message: Json = dialect.reply(reply)["choices"][0]["message"]
    return message


def _edited(history: Sequence[Json], edit: str) -> list[Json]:
    messages = [dict(message) for message in history]
    match edit:
        case "forget":
            return [messages[0], user("In short: nothing yet.")]
        case "swap results":
            return messages[:-2] + messages[-2:][::-1] if _are_results(messages[-2:]) else messages
    for message in messages:
        if message["role"] != "assistant":
            continue
        if edit == "drop reasoning":
            message.pop("reasoning_content", None)
        if edit in ("strip", "rewrite") and message["content"]:
            message["content"] = message["content"].strip() if edit == "strip" else "Otherwise."
        if edit == "as text" and message.pop("tool_calls", None):
            message["content"] = "I called a tool."
    if edit == "as text":
        messages = [user("done") if one["role"] == "tool" else one for one in messages]
    return messages


def _are_results(messages: Sequence[Json]) -> bool:
    return len(messages) == 2 and all(message["role"] == "tool" for message in messages)
