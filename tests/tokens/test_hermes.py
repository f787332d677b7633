import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.tokens.formats import HERMES, Reply, ToolCall
from prorl_service.tokens.formats.values import MAX_DEPTH

TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.lists(
    st.sampled_from([*TAGS, '"', "\\", "{", "}", "\n", "x"]), min_size=1
).map("".join)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | names,
    lambda inner: st.lists(inner) | st.dictionaries(names, inner),
    max_leaves=5,
)


def message_of(reply: Reply) -> str:
    return reply.problem.message if reply.problem else ""


def written(name: str, arguments: object) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


@pytest.mark.slow
@given(st.lists(st.tuples(names, st.dictionaries(names, values)), min_size=1, max_size=4))
def test_parallel_calls_are_read_back_in_order(calls: list[tuple[str, dict[str, object]]]) -> None:
    text = "I will look.\n" + "\n".join(written(*call) for call in calls)
    reply = HERMES.parse(text)
    assert reply.problem is None
    assert reply.calls == [ToolCall(*call) for call in calls]
    assert reply.content == "I will look."


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call>{}</tool_call>", 'a string "name"'),
        ('<tool_call>{"name": 3}</tool_call>', 'a string "name"'),
        ('<tool_call>{"name": "bash"', "pair up"),
        ('{"name": "bash"}</tool_call>', "pair up"),
        ("<tool_call>[]</tool_call>", "JSON object"),
        ('<tool_call>{"name": "bash", "arguments": "ls"}</tool_call>', '"arguments"'),
        ('<tool_call>{"name": "bash", arguments: {}}</tool_call>', "not valid JSON"),
        ('<tool_call>{"name": "b", "arguments": {"x": NaN}}</tool_call>', "NaN"),
        ('<tool_call>{"name": "b", "arguments": {"x": 1e999}}</tool_call>', "too large"),
        ('<tool_call>{"name": "\\ud800"}</tool_call>', "surrogate"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "nested"),
        ("<tool_call>" + "9" * 5000 + "</tool_call>", "not valid JSON"),
        ("<think>hm, let me", "not closed"),
        ("<think>a</think>b<think>c", "not closed"),
    ],
)
def test_malformed_replies_say_what_is_wrong(text: str, problem: str) -> None:
    reply = HERMES.parse(text)
    assert reply.calls == []
    assert reply.problem is not None
    assert problem in reply.problem.message


def test_a_problem_says_where_it_is() -> None:
    text = "Hm. <think>no</think> " + written("bash", {}) + " <tool_call>{</tool_call>"
    problem = HERMES.parse(text).problem
    assert problem is not None
    assert text[problem.start : problem.stop] == "{"
    stray = HERMES.parse("<think>no</think> a</tool_call>").problem
    assert stray is not None
    assert (stray.start, stray.stop) == (19, 31)


def test_reasoning_that_the_prompt_began_must_end() -> None:
    assert HERMES.parse("a</think>b", is_reasoning=True).content == "b"
    assert HERMES.parse("a</think>b", is_reasoning=True).reasoning == "a"
    assert "not closed" in message_of(HERMES.parse("It is 42.", is_reasoning=True))


prose = st.text(st.sampled_from("ab .\n")) | st.just("")


@pytest.mark.slow
@given(prose, prose, st.dictionaries(names, values), st.booleans(), st.booleans())
def test_reasoning_ends_where_it_is_closed(
    thought: str, said: str, arguments: dict[str, object], opened: bool, quotes: bool
) -> None:
    """Holds whatever the next call contains, and even if the reasoning itself quotes a call."""
    thought += written("bash", arguments) if quotes else ""
    reply = HERMES.parse(
        "<think>" * opened + thought + "</think>" + said + written("bash", arguments)
    )
    assert reply.problem is None
    assert reply.calls == [ToolCall("bash", arguments)]
    assert reply.content == said.strip()


def test_thoughts_between_calls_are_left_out() -> None:
    first, second = ({"command": command} for command in ("ls", "pwd"))
    reply = HERMES.parse(
        f"<think>a</think>b{written('bash', first)}<think>c</think>d{written('bash', second)}"
    )
    assert reply.calls == [ToolCall("bash", first), ToolCall("bash", second)]
    assert reply.content == "bd"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("a</think>b", "b"),
        ("a</think>\n\n</think>b", "b"),
        ("<think>a</think></think>b", "b"),
        ("<think>a</think>Cut at `</think>`.", "Cut at `</think>`."),
        ("<think>I close with <tool_call> in mind</think>b", "b"),
        ("<think>a<think>b</think>c", "c"),
    ],
)
def test_text_outside_the_reasoning_is_the_content(text: str, content: str) -> None:
    reply = HERMES.parse(text)
    assert (reply.problem, reply.calls, reply.content) == (None, [], content)


@pytest.mark.parametrize(("too_many", "problem"), [(0, False), (1, True)])
def test_arguments_may_be_nested_to_a_limit(too_many: int, problem: bool) -> None:
    lists = MAX_DEPTH - 2 + too_many  # the call and its arguments are levels too
    body = '{"name": "b", "arguments": {"x": %s}}' % ("[" * lists + "]" * lists)
    reply = HERMES.parse(f"<tool_call>{body}</tool_call>")
    assert ("nested too deeply" in message_of(reply)) is problem
    assert len(reply.calls) == 1 - too_many


@pytest.mark.parametrize("unit", ["", "{", '{"', '{"\\', '{\\"', '{"a":"b', '{" "', "{ ", '{"\\"'])
def test_many_unclosed_calls_are_read_quickly(unit: str) -> None:
    """A quadratic reader would take minutes."""
    assert "pair up" in message_of(HERMES.parse(f"<tool_call>{unit}" * 100_000))


@pytest.mark.parametrize("tag", TAGS)
def test_tags_quoted_in_arguments_are_text(tag: str) -> None:
    arguments = {"command": f"grep -rn '{tag}' *.py"}
    assert HERMES.parse(written("bash", arguments)).calls == [ToolCall("bash", arguments)]
