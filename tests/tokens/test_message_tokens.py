"""Conversations with a model that takes messages: written in tokens, and read back exactly."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message
from prorl_service.tokens import message_tokens
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.reading import Conversation, ReplyReader
from tests.tokens.families import TOOLS

HOSTILE = st.lists(
    st.sampled_from([*message_tokens.SPECIAL_TOKENS, '{"name": "edit"}', "\n", " ", "a", "\u200b"])
).map("".join)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20) | HOSTILE
ARGUMENTS = st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(TEXTS, max_size=2), max_size=3)
CALLS = st.lists(st.tuples(TEXTS.filter(bool), ARGUMENTS), max_size=3)


@pytest.fixture(scope="module")
def api_chat() -> ChatFormat:
    return ChatFormat.load(message_tokens.PREFIX)


def said(chat: ChatFormat, ids: list[int]) -> tuple[list[dict[str, Any]], list[Any]]:
    return message_tokens.read(chat.decode([*ids, chat.end_of_turn_id]))


def replied(
    chat: ChatFormat, content: str, reasoning: str, calls: list[tuple[str, dict[str, Any]]]
) -> list[int]:
    written = [
        (f"call_{place}", chat.defuse(name), chat.defuse(json.dumps(given, ensure_ascii=False)))
        for place, (name, given) in enumerate(calls)
    ]
    text = message_tokens.written(chat.defuse(content), chat.defuse(reasoning), written)
    return [*chat.encode(text), chat.end_of_turn_id]


@given(TEXTS, TEXTS, TEXTS, TEXTS, CALLS, TEXTS)
def test_a_conversation_is_read_back_as_it_was_said(
    api_chat: ChatFormat,
    system: str,
    question: str,
    reasoning: str,
    content: str,
    calls: list[tuple[str, dict[str, Any]]],
    result: str,
) -> None:
    chat = api_chat
    first = [Message(role="system", content=system), Message(role="user", content=question)]
    ids = chat.prompt_ids(first, tools=TOOLS)
    ids += replied(chat, content, reasoning, calls)
    answers = [Message(role="tool", content=result, name="edit") for _ in calls]
    ids += chat.delta_ids([*answers, Message(role="user", content="Go on.")], after=ids[-1])
    messages, tools = said(chat, ids)
    assert tools == TOOLS
    roles = ["system", "user", "assistant", *["tool"] * len(calls), "user"]
    assert [one["role"] for one in messages] == roles
    assert [messages[0]["content"], messages[1]["content"]] == [
        chat.defuse(system),
        chat.defuse(question),
    ]
    spoken = messages[2]
    assert spoken["content"] == chat.defuse(content).strip()
    called = [one["function"] for one in spoken.get("tool_calls", [])]
    assert [one["name"] for one in called] == [chat.defuse(name) for name, _ in calls]
    for one, (_, wanted) in zip(called, calls, strict=True):
        assert one["arguments"] == json.dumps(
            json.loads(chat.defuse(json.dumps(wanted, ensure_ascii=False))), ensure_ascii=False
        )
    results = [one for one in messages if one["role"] == "tool"]
    assert [one["tool_call_id"] for one in results] == [f"call_{n}" for n in range(len(calls))]
    assert {one["content"] for one in results} <= {chat.defuse(result)}


def test_people_read_the_same_conversation(api_chat: ChatFormat) -> None:
    first = [Message(role="user", content="Fix it.")]
    ids = api_chat.prompt_ids(first, tools=TOOLS)
    read = ReplyReader(api_chat).prompt(ids, Conversation())
    assert read is not None
    assert (read.messages, read.tools) == ([{"role": "user", "content": "Fix it."}], TOOLS)


def test_the_template_writes_replies_as_an_engine_does(api_chat: ChatFormat) -> None:
    call: JsonValue = {
        "id": "call_0",
        "function": {"name": "edit", "arguments": {"text": "\u00e9"}},
    }
    message: JsonValue = {"content": "So.", "reasoning_content": "Why?", "tool_calls": [call]}
    written = message_tokens.written("So.", "Why?", [("call_0", "edit", '{"text": "\\u00e9"}')])
    assert api_chat.written(Message.written(message)) == written


def test_each_call_has_a_result_and_each_result_a_call(api_chat: ChatFormat) -> None:
    chat = api_chat
    ids = chat.prompt_ids([Message(role="user", content="Go.")], tools=TOOLS)
    ids += replied(chat, "", "", [("edit", {}), ("edit", {})])
    one = Message(role="tool", content="done", name="edit")
    lacking, _ = said(chat, ids + chat.delta_ids([one], after=ids[-1]))
    assert [message.get("content") for message in lacking[2:]] == ["done", ""]
    spare, _ = said(chat, ids + chat.delta_ids([one] * 3, after=ids[-1]))
    assert [message["role"] for message in spare[2:]] == ["tool", "tool", "user"]


def test_a_broken_call_stays_text_and_its_answer_is_the_users(api_chat: ChatFormat) -> None:
    chat = api_chat
    ids = chat.prompt_ids([Message(role="user", content="Go.")], tools=TOOLS)
    text = message_tokens.written("", "", [("call_0", "edit", '{"text": ')])
    assert chat.replies.parse(text, TOOLS).problem is not None
    ids += [*chat.encode(text), chat.end_of_turn_id]
    ids += chat.delta_ids([Message(role="tool", content="Format error.")], after=ids[-1])
    messages, _ = said(chat, ids)
    assert [(one["role"], "tool_calls" in one) for one in messages[1:]] == [
        ("assistant", False),
        ("user", False),
    ]


def test_a_tokenizer_may_be_another_models(tiny_model: Path) -> None:
    chat = ChatFormat.load(f"{message_tokens.PREFIX}{tiny_model}")
    ids = chat.prompt_ids([Message(role="user", content="a <think> b")], tools=TOOLS)
    assert said(chat, ids) == ([{"role": "user", "content": "a <\u200bthink> b"}], TOOLS)
    assert len(ids) < len(
        ChatFormat.load(message_tokens.PREFIX).prompt_ids(
            [Message(role="user", content="a <think> b")], tools=TOOLS
        )
    )


@pytest.mark.parametrize("text", ["", "a", "<|im_start|>user\na<|im_end|>\n<|im_start|>"])
def test_text_of_another_template_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the prompt"):
        message_tokens.read(text)


def test_a_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="tokenizer"):
        ChatFormat.load(f"{message_tokens.PREFIX}/nowhere")
