"""Kinds of segments, and replies that were thrown away."""

from prorl_service.gateway.kinds import AnsweredCall, abandoned, kinds_of, last_of_main

AGENT, HELPER, TITLE = b"agent", b"helper", b"title"


def call(
    segment: int, parent: int | None = None, head: bytes = AGENT, **marks: object
) -> AnsweredCall:
    fields = {"has_tools": True, "quotes_policy": parent is not None} | marks
    return AnsweredCall(segment, parent, head, **fields)  # type: ignore[arg-type]


def test_a_conversation_is_the_agents_own() -> None:
    calls = [call(0), call(0, 0), call(0, 1)]
    assert kinds_of(calls) == {0: "main"}
    assert abandoned(calls) == []
    assert last_of_main(calls, kinds_of(calls)) == 2


def test_a_title_that_comes_first_is_auxiliary() -> None:
    calls = [call(0, head=TITLE, has_tools=False), call(1), call(1, 1)]
    assert kinds_of(calls) == {0: "auxiliary", 1: "main"}
    assert last_of_main(calls, kinds_of(calls)) == 2


def test_without_tools_the_first_conversation_is_the_agents_own() -> None:
    calls = [call(0, has_tools=False), call(0, 0, has_tools=False)]
    assert kinds_of(calls) == {0: "main"}


def test_other_tools_are_a_sub_agent() -> None:
    calls = [call(0), call(1, head=HELPER), call(0, 0), call(1, 1, head=HELPER)]
    assert kinds_of(calls) == {0: "main", 1: "subagent"}
    assert last_of_main(calls, kinds_of(calls)) == 2


def test_a_client_may_say_that_it_is_a_sub_agent() -> None:
    calls = [call(0), call(1, is_subagent=True), call(0, 0)]
    assert kinds_of(calls) == {0: "main", 1: "subagent"}


def test_a_summary_and_what_goes_on_from_it_are_compaction() -> None:
    summary = call(1, head=TITLE, has_tools=False, quotes_policy=True)
    calls = [call(0), call(0, 0), summary, call(2), call(2, 3)]
    assert kinds_of(calls) == {0: "main", 1: "compaction", 2: "compaction"}
    assert last_of_main(calls, kinds_of(calls)) == 4
    assert abandoned(calls) == []


def test_a_reply_that_is_asked_for_again_is_abandoned() -> None:
    calls = [call(0), call(0, 0), call(1, 0), call(1, 2)]
    assert abandoned(calls) == [1]
    assert kinds_of(calls) == {0: "main", 1: "main"}


def test_a_first_reply_that_is_left_out_is_abandoned() -> None:
    calls = [call(0), call(1, asked_again=(0,)), call(1, 1)]
    assert abandoned(calls) == [0]
    assert kinds_of(calls) == {0: "main", 1: "main"}
