"""Kinds of segments, the answer, and replies that were thrown away."""

import dataclasses
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.gateway.kinds import AnsweredCall, abandoned, answer, kinds_of

AGENT, HELPER, NONE = b"agent", b"helper", b""


def call(
    segment: int, parent: int | None = None, tools: bytes = AGENT, **marks: object
) -> AnsweredCall:
    quoted = () if parent is None else tuple(range(parent + 1))
    fields = {"system": tools, "quoted": quoted, "has_calls": True} | marks
    return AnsweredCall(segment, parent, tools, **fields)  # type: ignore[arg-type]


def kinds(calls: list[AnsweredCall]) -> dict[int, str]:
    return {**kinds_of(calls).of_segments}


def graded(calls: list[AnsweredCall], printed: str = "") -> int | None:
    return answer(calls, kinds_of(calls).own, printed).turn


def test_a_conversation_is_the_agents_own() -> None:
    calls = [call(0), call(0, 0), call(0, 1)]
    assert kinds(calls) == {0: "main"}
    assert abandoned(calls) == []
    assert graded(calls) == 2


def test_a_title_that_comes_first_is_auxiliary() -> None:
    calls = [call(0, tools=NONE), call(1), call(1, 1)]
    assert kinds(calls) == {0: "auxiliary", 1: "main"}
    assert graded(calls) == 2


def test_without_tools_the_first_conversation_is_the_agents_own() -> None:
    calls = [call(0, tools=NONE, has_calls=False), call(0, 0, tools=NONE)]
    assert kinds(calls) == {0: "main"}


def test_other_tools_are_a_sub_agent() -> None:
    calls = [
        call(0),
        call(1, tools=HELPER),
        call(0, 0),
        call(1, 1, tools=HELPER, quoted=(1,)),
    ]
    assert kinds(calls) == {0: "main", 1: "subagent"}
    assert graded(calls) == 2


def test_a_client_may_say_that_it_is_a_sub_agent() -> None:
    calls = [call(0), call(1, is_subagent=True), call(0, 0)]
    assert kinds(calls) == {0: "main", 1: "subagent"}


def test_a_summary_and_what_goes_on_from_it_are_compaction() -> None:
    summary = call(1, tools=NONE, quoted=(0, 1), has_calls=False)
    calls = [call(0), call(0, 0), summary, call(2), call(2, 3, quoted=(3,))]
    assert kinds(calls) == {0: "main", 1: "compaction", 2: "compaction"}
    assert graded(calls) == 4
    assert abandoned(calls) == []


def test_a_summary_with_the_same_tools_and_what_keeps_the_last_turns_are_compaction() -> None:
    """Claude Code asks for a summary in place of a reply, and repeats that request."""
    calls = [
        call(0),
        call(0, 0),
        call(0, 1),
        call(0, 2),
        call(1, 2),
        call(2, quoted=(1,), asked_again=(4,)),
        call(3, quoted=(2, 3)),
        call(3, 6, quoted=(2, 3, 6), has_calls=False),
    ]
    assert kinds(calls) == {0: "main", 1: "compaction", 2: "compaction", 3: "compaction"}
    assert graded(calls) == 7


def test_a_reply_that_is_asked_for_again_is_abandoned() -> None:
    calls = [call(0), call(0, 0), call(1, 0), call(1, 2, quoted=(0, 2))]
    assert abandoned(calls) == [1]
    assert kinds(calls) == {0: "main", 1: "main"}


def test_a_first_reply_that_is_left_out_is_abandoned() -> None:
    calls = [call(0), call(1, asked_again=(0,)), call(1, 1, quoted=(1,))]
    assert abandoned(calls) == [0]
    assert kinds(calls) == {0: "main", 1: "main"}


def test_one_who_looks_at_finished_work_is_not_the_agent() -> None:
    """Qwen Code has another agent extract memories from finished work."""
    done = call(0, 0, has_calls=False, text="Done.")
    calls = [call(0), done, call(1, tools=HELPER, quoted=(0, 1), has_calls=False, text="Noted.")]
    assert kinds(calls) == {0: "main", 1: "subagent"}
    assert graded(calls) == 1


def test_a_question_after_the_answer_is_told_by_what_was_printed() -> None:
    calls = [
        call(0),
        call(0, 0, has_calls=False, text="The answer is 42."),
        call(0, 1, has_calls=False, text="Shall I explain it?"),
    ]
    found = answer(calls, kinds_of(calls).own, '{"result": "The answer is 42."}')
    assert (found.turn, found.is_sure) == (1, False)
    assert answer(calls, kinds_of(calls).own, "Shall I explain it?").turn == 2
    last = json.dumps("Shall I\nexplain \\boxed{it}?")
    shown = [*calls[:2], dataclasses.replace(calls[2], text=json.loads(last))]
    assert answer(shown, kinds_of(shown).own, f"The answer is 42. {last}").turn == 2
    silent = answer(calls, kinds_of(calls).own, "done")
    assert (silent.turn, silent.is_sure) == (2, True)


def test_what_is_said_beside_a_call_is_no_answer() -> None:
    """A program may print some of its replies only, or in a form of its own."""
    calls = [call(0, text="I look."), call(0, 0, has_calls=False, text="**It is** 42.")]
    found = answer(calls, kinds_of(calls).own, "I look.\nIt is 42.")
    assert (found.turn, found.is_sure) == (1, True)


HEADS = st.sampled_from(["same", "clock", "more tools", "handoff", "no tools"])


@given(
    heads=st.lists(HEADS, min_size=1, max_size=8),
    helpers=st.lists(st.booleans(), min_size=8, max_size=8),
    seed=st.integers(0, 1000),
)
def test_the_last_reply_is_graded_whatever_becomes_of_the_head(
    heads: list[str], helpers: list[bool], seed: int
) -> None:
    """A program changes system prompt and tools between its calls, has others help meanwhile, and
    may offer no tools for its last reply."""
    rng = random.Random(seed)
    tools, system = AGENT, b"first"
    calls = [AnsweredCall(0, None, tools, system, has_calls=True)]
    own = [0]
    for number, head in enumerate(heads):
        if helpers[number]:
            helper = AnsweredCall(
                100 + number, None, HELPER, b"helper", has_calls=rng.random() < 0.5, text="Helped."
            )
            calls.append(helper)
        is_last = number == len(heads) - 1
        if head in ("clock", "handoff"):
            system = f"{number}".encode()
        if head in ("more tools", "handoff"):
            tools = f"tools {number}".encode()
        asked_with = NONE if head == "no tools" and is_last else tools
        same = (calls[own[-1]].tools, calls[own[-1]].system) == (asked_with, system)
        before = own[-1]
        reply = AnsweredCall(
            calls[before].segment if same else len(calls),
            before if same else None,
            asked_with,
            system,
            tuple(own),
            has_calls=not is_last,
            text=f"Reply {number}.",
        )
        own.append(len(calls))
        calls.append(reply)
    assert graded(calls) == own[-1]
    found = kinds_of(calls)
    assert {found.of_segments[calls[one].segment] for one in own} == {"main"}
    assert {found.of_segments[one.segment] for one in calls if one.tools == HELPER} <= {"subagent"}


@pytest.mark.parametrize("has_helper", [False, True])
def test_a_conversation_without_tools_may_change_its_system_prompt(has_helper: bool) -> None:
    first = AnsweredCall(0, None, NONE, b"one", text="Yes?")
    other = [AnsweredCall(1, None, NONE, b"title", text="A title")] if has_helper else []
    last = AnsweredCall(2, None, NONE, b"two", (0,), text="42")
    calls = [first, *other, last]
    assert graded(calls) == len(calls) - 1
