"""Each family's published chat template: prompts, deltas and calls."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message
from prorl_service.tokens.formats import ToolCall
from prorl_service.tokens.probe import assistant, ends_in_reasoning, user
from tests.tokens.families import FAMILIES, REFUSED, TOOLS, Family, chat_of, written

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
CALL = ToolCall("edit", {"text": 'if a:\n    b()  # "c"', "line": 3, "undo": True})


@each_family
def test_parallel_calls_are_read_if_the_template_supports_them(family: Family) -> None:
    chat = chat_of(family)
    assert chat.replies.name == family.format
    assert (chat.findings.parallel_calls == "rendered") is not family.one_call
    if not family.one_call:
        other = ToolCall("edit", {"text": "x"})
        text, prompt_ids = written(family, [CALL, other])
        reply = chat.read(text, prompt_ids, TOOLS)
        assert [call.arguments for call in reply.calls] == [CALL.arguments, other.arguments]


@each_family
def test_a_call_that_is_cut_anywhere_is_a_problem(family: Family) -> None:
    """A cut call is never an answer: the model stopped in the middle of it."""
    chat = chat_of(family)
    text, prompt_ids = written(family, [CALL])
    begin = min(at + len(sign) for sign in SIGNS if (at := text.find(sign)) >= 0)
    whole = len(text.rstrip())
    for stop in range(begin, whole):
        reply = chat.read(text[:stop], prompt_ids, TOOLS)
        assert reply.calls == []
        assert reply.problem is not None, text[:stop]


SIGNS = [
    *("<tool_call>", "<minimax:tool_call>", "<｜tool▁calls▁begin｜>", "<|tool_call>"),
    *("<|tool_calls_section_begin|>", "[TOOL_CALLS]", " to=functions", '{"name"'),
]
"""Strings that begin calls."""


@each_family
@pytest.mark.parametrize("thinking", [None, False])
def test_deltas_are_what_a_whole_rendering_has(family: Family, thinking: bool | None) -> None:
    """Compares only the ends: a template may drop earlier turns, which the service does not."""
    chat = chat_of(family)
    answers = [
        [Message(role="tool", content="3 files", name="edit", tool_call_id="call00000")],
        [Message(role="user", content="And now?")],
    ]
    turns = [assistant(CALL), assistant(content="It is done.")]
    for turn, answer in zip(turns, answers, strict=True):
        before = [user(), turn]
        rendered = [*before, *chat._rendered(answer)]
        whole = chat.encode(chat._template.render(rendered, (), thinking))
        for after in sorted(chat.end_ids):
            delta = chat.delta_ids(answer, after=after, thinking=thinking)
            if whole[-len(delta) - 1 :] == [after, *delta]:
                break
        else:
            delta = chat.delta_ids(answer, after=-1, thinking=thinking)
            assert whole[-len(delta) :] == delta


def values() -> st.SearchStrategy[dict[str, Any]]:
    text = st.text(st.sampled_from("ab \n\t{}[]\"\\'<>/=:;,&é\u4e2d"), max_size=20)
    return st.fixed_dictionaries(
        {"text": text},
        optional={
            "line": st.integers(-(10**12), 10**12),
            "undo": st.booleans(),
            "lines": st.lists(st.integers(-9, 9), max_size=3),
        },
    )


@pytest.mark.slow
@each_family
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(arguments=values())
def test_calls_written_by_the_template_are_read_back(
    family: Family, arguments: dict[str, Any]
) -> None:
    chat = chat_of(family)
    text, prompt_ids = written(family, [ToolCall("edit", arguments)])
    reply = chat.read(text, prompt_ids, TOOLS)
    assert reply.problem is None
    assert [(call.name, call.arguments) for call in reply.calls] == [("edit", arguments)]


@pytest.mark.slow
@each_family
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.data())
def test_no_reply_makes_a_format_raise(family: Family, data: st.DataObject) -> None:
    chat = chat_of(family)
    text, _ = written(family, [CALL])
    parts = [*family.ends, *family.tokens, *text.split("\n"), text, "x", "{", "}"]
    pieces = st.sampled_from(parts) | st.text(max_size=20)
    hostile = "".join(data.draw(st.lists(pieces, max_size=6)))
    for is_reasoning in (False, True):
        reply = chat.replies.parse(hostile, TOOLS, is_reasoning=is_reasoning)
        assert not (reply.calls and reply.problem)


@pytest.mark.parametrize(
    "family", [one for one in FAMILIES if one.format != "llama-3"], ids=lambda one: one.name
)
def test_reasoning_is_separated_from_the_answer(family: Family) -> None:
    chat = chat_of(family)
    prompt = chat._template.render([user()], TOOLS)
    text = REASONING.get(family.format, "<think>\nHm.\n</think>\n\n42")
    if ends_in_reasoning(prompt):
        text = text.removeprefix("<think>\n")
    reply = chat.read(text, chat.encode(prompt), TOOLS)
    assert (reply.problem, reply.reasoning, reply.content) == (None, "Hm.", "42")


REASONING = {
    "harmony": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    "<|channel|>final<|message|>42",
    "gemma-4": "<|channel>thought\nHm.<channel|>42",
    "mistral": "[THINK]Hm.[/THINK]42",
}
"""Replies with reasoning in formats without `think` tags."""


@pytest.mark.slow
@each_family
@pytest.mark.timeout(60)
@pytest.mark.sampled(8)
def test_a_long_hostile_reply_is_read_quickly(family: Family) -> None:
    """A quadratic reader would take minutes."""
    chat = chat_of(family)
    text, _ = written(family, [CALL])
    for part in {text[: len(text) // 3], text[: len(text) * 2 // 3], text[len(text) // 2 :], text}:
        reply = chat.replies.parse(part * (2_000_000 // len(part)), TOOLS)
        assert reply.problem or reply.calls or len(reply.content) > 10**6


@each_family
def test_agents_with_tools_are_refused_if_the_model_would_not_see_them(family: Family) -> None:
    chat = chat_of(family)
    question = [Message(role="user", content="Hi.")]
    if family.shows_tools:
        assert "edit" in chat.decode(chat.prompt_ids(question, tools=TOOLS))
    else:
        with pytest.raises(InvalidRequest, match="shows the model no tools"):
            chat.prompt_ids(question, tools=TOOLS)
    chat.prompt_ids(question)


def test_agents_with_tools_are_refused_if_the_template_refuses_calls() -> None:
    chat = chat_of(REFUSED)
    with pytest.raises(InvalidRequest, match=r"does not allow.*'append' of 'list'"):
        chat.prompt_ids([Message(role="user", content="Hi.")], tools=TOOLS)


@each_family
def test_system_messages_are_never_lost(family: Family) -> None:
    chat = chat_of(family)
    messages = [
        Message(role="system", content="First rule."),
        Message(role="system", content="Second rule."),
        Message(role="user", content="Hi."),
        Message(role="assistant", content="Yes?"),
        Message(role="user", content="Go on."),
        Message(role="system", content="Third rule."),
        Message(role="user", content="Now."),
    ]
    text = chat.decode(chat.prompt_ids(messages))
    places = [text.index(f"{one} rule.") for one in ("First", "Second", "Third")]
    assert places == sorted(places)


@each_family
def test_a_conversation_with_calls_can_be_continued(family: Family) -> None:
    """Few-shot examples, or a conversation that another model began."""
    chat = chat_of(family)
    call = {"id": "call00000", "function": {"name": "edit", "arguments": '{"text": "a <|end|>"}'}}
    messages = [
        Message(role="user", content="Hi."),
        Message.model_validate({"role": "assistant", "content": None, "tool_calls": [call]}),
        Message(role="tool", content="It is done.", tool_call_id="call00000", name="edit"),
    ]
    text = chat.decode(chat.prompt_ids(messages))
    assert text.index("edit") < text.index("It is done.")
    said = [Message(role="assistant", content="Done."), Message(role="user", content="Again.")]
    assert "Again." in chat.decode(chat.prompt_ids([*messages, *said]))
