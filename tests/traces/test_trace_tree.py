"""Trees of rollouts whose records say little, or odd things; ids; what is said of trouble."""

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.schemas import (
    EngineTimes,
    FinishReason,
    Group,
    Sampling,
    Stage,
    StageTime,
    ToolCallRecord,
    Trajectory,
    Turn,
)
from prorl_service.schemas.tracing import read_traceparent
from prorl_service.traces.export import EVERY_S, SDK_LOGGER, Trouble
from prorl_service.traces.spans import MAX_LINKS, is_traced, root_of, siblings_of
from prorl_service.traces.tree import Node, TracedRollout, shown, tree
from tests import builders

GROUP = Group(group_id="g", task=builders.task(), n=4)
CREATED = 1000.0


def turn(start: int, started_at: float | None, **fields: Any) -> Turn:
    given = {"started_at": started_at, "model_s": 2.0, "backend": "engine:1"} | fields
    return builders.turn(start=start, stop=start + 2, **given)


def ended(turns: list[Turn], stages: list[StageTime], **fields: Any) -> TracedRollout:
    size = max((one.stop for one in turns), default=0)
    segment = builders.segment([1] * size, prompt_ids=[1, 2, 3], policy_versions=list(range(size)))
    trajectory = Trajectory(
        segments=[segment],
        turns=turns,
        finish_reason=FinishReason.FINISHED,
        sampling=Sampling(),
    )
    given: dict[str, Any] = {"attempt": 1, "reward": 1.0, "trajectory": trajectory}
    given |= {"stages": stages} | fields
    rollout = builders.rollout("g.0", created_at=CREATED, **given)
    return TracedRollout(rollout, GROUP, "m", CREATED + 100)


def visit(stage: Stage, started_at: float, took_s: float, attempt: int = 1) -> StageTime:
    return StageTime(stage=stage, attempt=attempt, started_at=started_at, queue_s=0, took_s=took_s)


def grown(one: TracedRollout) -> Node:
    return tree(one, lambda _: "vllm")


def test_calls_without_a_time_follow_each_other_from_the_beginning_of_run() -> None:
    call = ToolCallRecord(name="bash", output="", duration_s=1.0)
    turns = [turn(0, None, tool_calls=[call]), turn(2, None, waited_s=0.5)]
    stages = [visit(Stage.INIT, 1001, 1), visit(Stage.RUN, 1010, 9)]
    root = grown(ended(turns, stages))
    run = root.children[1]
    times = [(one.start, one.end) for one in run.children]
    assert times == [(1010, 1012), (1012, 1013), (1013, 1015.5)]


def test_calls_are_children_of_the_rollout_if_its_stages_are_unknown() -> None:
    root = grown(ended([turn(0, 1003.0)], []))
    assert [one.name for one in root.children] == ["chat m"]
    assert (root.start, root.end) == (CREATED, CREATED + 100)


def test_calls_belong_to_the_stage_in_which_they_began() -> None:
    turns = [turn(0, 1001.5), turn(2, 1011.0)]
    stages = [visit(Stage.INIT, 1001, 3), visit(Stage.RUN, 1010, 9), visit(Stage.EVAL, 1020, 1)]
    root = grown(ended(turns, stages))
    assert [len(one.children) for one in root.children] == [1, 1, 0]


def test_a_clock_that_jumps_back_leaves_a_tree_whose_root_holds_all() -> None:
    stages = [visit(Stage.INIT, 1001, 1), visit(Stage.RUN, 400, 9)]
    root = grown(ended([turn(0, 402.0), turn(2, 399.0)], stages))
    for one in root.walk():
        assert root.start <= one.start <= one.end <= root.end
    assert sum(1 for one in root.walk() if one.name == "chat m") == 2


def test_a_turn_has_the_newest_version_that_sampled_it_and_its_place_in_the_prompt() -> None:
    times = EngineTimes(queue_s=0.25, prefill_s=0.5, decode_s=1.0)
    turns = [turn(0, 1011.0), turn(2, 1012.0, times=times)]
    root = grown(ended(turns, [visit(Stage.RUN, 1010, 9)]))
    first, second = root.children[0].children
    assert "prorl.engine.queue_s" not in first.attributes
    assert second.attributes["prorl.engine.queue_s"] == 0.25
    assert first.attributes["prorl.policy_version"] == 1
    assert second.attributes["prorl.policy_version"] == 3
    assert second.attributes["gen_ai.usage.input_tokens"] == 3 + 2
    assert second.attributes["server.address"] == "engine"


@pytest.mark.parametrize("backend", ["http://[::1", "", "a b", "[::1]:80", "x:99999999"])
def test_an_engines_name_may_be_anything(backend: str) -> None:
    root = grown(ended([turn(0, 1011.0, backend=backend)], [visit(Stage.RUN, 1010, 9)]))
    assert root.children[0].children[0].name == "chat m"


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "ü", "bash\n", "\x1b"])
def test_a_tools_name_is_plain_or_unknown(name: str) -> None:
    call = ToolCallRecord(name=name, output="", is_error=True)
    root = grown(ended([turn(0, 1011.0, tool_calls=[call])], [visit(Stage.RUN, 1010, 9)]))
    tool = root.children[0].children[1]
    assert tool.name == "execute_tool unknown"
    assert tool.problem is not None


# --- text ---------------------------------------------------------------------------------------


@given(st.text(), st.integers(1, 50))
def test_text_has_no_control_characters_and_is_bounded(text: str, limit: int) -> None:
    said = shown(text, limit)
    assert all(one in "\n\t" or one.isprintable() or ord(one) > 0x9F for one in said)
    assert not any(0x202A <= ord(one) <= 0x202E or 0x2066 <= ord(one) <= 0x2069 for one in said)
    assert len(said) <= limit * len("\\u202e") + len("… [ characters left out]") + 20
    assert shown(said, 1000) == said


# --- ids ----------------------------------------------------------------------------------------


def test_ids_survive_a_restart_and_differ_between_runs() -> None:
    assert root_of(GROUP, 1, CREATED) == root_of(GROUP.model_copy(deep=True), 1, CREATED)
    ids = [root_of(GROUP, index, at) for index in range(4) for at in (CREATED, CREATED + 1)]
    assert len({one.trace_id for one in ids}) == len({one.span_id for one in ids}) == 8
    assert all(0 < one.trace_id < 2**128 and 0 < one.span_id < 2**64 for one in ids)


def test_links_are_few_in_large_groups() -> None:
    large = GROUP.model_copy(update={"n": 4096})
    assert len(siblings_of(large, 5, CREATED)) == MAX_LINKS
    assert len(siblings_of(large, 4000, CREATED)) == MAX_LINKS
    assert root_of(large, 5, CREATED) not in siblings_of(large, 5, CREATED)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_a_share_of_groups_is_traced(share: float) -> None:
    groups = [GROUP.model_copy(update={"group_id": f"g{number}"}) for number in range(2000)]
    traced = sum(is_traced(one, share) for one in groups) / len(groups)
    assert abs(traced - share) < 0.05
    assert share not in (0, 1) or traced == share


@pytest.mark.parametrize(
    ("header", "read"),
    [
        (f"00-{'a' * 32}-{'b' * 16}-01", f"00-{'a' * 32}-{'b' * 16}-01"),
        (f" 00-{'a' * 32}-{'b' * 16}-00 ", f"00-{'a' * 32}-{'b' * 16}-00"),
        (f"cc-{'a' * 32}-{'b' * 16}-01-of the future", f"00-{'a' * 32}-{'b' * 16}-01"),
        (f"00-{'a' * 32}-{'b' * 16}-01-of the future", None),
        (f"ff-{'a' * 32}-{'b' * 16}-01", None),
        (f"00-{'0' * 32}-{'b' * 16}-01", None),
        (f"00-{'a' * 32}-{'0' * 16}-01", None),
        (f"00-{'A' * 32}-{'b' * 16}-01", None),
        (f"00-{'a' * 32}-{'b' * 16}", None),
        ("", None),
        (None, None),
    ],
)
def test_traceparents_are_read_as_the_standard_says(header: str | None, read: str | None) -> None:
    assert read_traceparent(header) == read


# --- trouble ------------------------------------------------------------------------------------


def test_trouble_is_logged_once_a_minute_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    trouble = Trouble("http://c/v1/traces", lambda: now)
    sdk = logging.getLogger(SDK_LOGGER)
    sdk.error("Failed to export %s batch code: %s, reason: %s", "spans", 401, "Un\x0aauthorized")
    trouble.refused(3)
    for _ in range(5):
        trouble.refused(2)
    assert [one.levelname for one in caplog.records] == ["WARNING"]
    assert caplog.messages[0].endswith("those of 3 rollouts are lost: status 401, Un authorized")
    now = EVERY_S
    trouble.refused(1)
    assert "those of 11 rollouts" in caplog.messages[1]
    trouble.taken()
    trouble.taken()
    assert caplog.messages[2:] == ["http://c/v1/traces accepts spans again"]
