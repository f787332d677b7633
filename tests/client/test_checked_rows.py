"""The check of a data set's rows, on generated ones, with a stand-in for the service."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.client import datasets
from prorl_service.client.datasets import BadRow, BadRows, bad_rows, check_rows, valid_task
from prorl_service.schemas import Task, TaskProblem

HINT = "see the agent"


def row(number: int, kind: str) -> tuple[str, dict[str, Any]]:
    messages = [] if kind == "no task" else [{"role": "user", "content": "go"}]
    data = {"bad": kind == "bad data"}
    fields = {"task_id": f"q{number}", "agent": "a", "messages": messages, "data": data}
    return f"line {number}", {"kind": kind, "fields": fields}


def task_of(value: dict[str, Any]) -> Task:
    if value["kind"] == "no row":
        raise ValueError("it is not JSON")
    if value["kind"] == "nonsense":
        return valid_task(value["kind"].items())
    return valid_task(value["fields"])


def service(tasks: Sequence[Mapping[str, Any]]) -> list[TaskProblem]:
    assert len(tasks) <= datasets.ROWS_AT_ONCE
    return [
        TaskProblem(index=index, task_id=task["task_id"], field="data.bad", message="no", hint=HINT)
        for index, task in enumerate(tasks)
        if task["data"]["bad"]
    ]


def expected(number: int, kind: str) -> list[BadRow]:
    where, task_id = f"line {number}", f"q{number}"
    too_few = "List should have at least 1 item after validation, not 0"
    return {
        "fine": [],
        "no row": [BadRow(where, "it is not JSON")],
        "nonsense": [
            BadRow(where, "it is no task: AttributeError: 'str' object has no attribute 'items'")
        ],
        "no task": [BadRow(where, too_few, task_id, "messages")],
        "bad data": [BadRow(where, "no", task_id, "data.bad", HINT)],
    }[kind]


KINDS = st.lists(
    st.sampled_from(["fine", "no row", "nonsense", "no task", "bad data"]), max_size=40
)


@given(KINDS, st.sampled_from([1, 3, 256]), st.sampled_from([1, 400, 8 << 20]))
def test_each_bad_row_is_named_in_the_order_of_the_data_set(
    kinds: list[str], at_once: int, size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "ROWS_AT_ONCE", at_once)
        patch.setattr(datasets, "BYTES_AT_ONCE", size)
        found = list(bad_rows((row(*one) for one in enumerate(kinds)), task_of, service))
    assert found == [bad for one in enumerate(kinds) for bad in expected(*one)]


@given(KINDS)
def test_one_error_names_at_most_ten_rows(kinds: list[str]) -> None:
    bad = [one for one, kind in enumerate(kinds) if kind != "fine"]
    rows = (row(*one) for one in enumerate(kinds))
    if not bad:
        check_rows(rows, task_of, service)
        return
    with pytest.raises(BadRows) as refused:
        check_rows(rows, task_of, service)
    lines = [line.strip() for line in refused.value.message.splitlines()]
    assert lines[0].startswith(f"{len(bad)} row")
    named = [line for line in lines if line.startswith("line ")]
    assert [int(line.split(":")[0].split(",")[0].split()[1]) for line in named] == bad[:10]
    assert (f"and {len(bad) - 10} more" in lines) == (len(bad) > 10)
    assert (HINT in lines) == ("bad data" in kinds)


def test_a_line_says_row_task_field_and_reason() -> None:
    bad = BadRow("line 4", "Input should be a valid string", "q03", "data.answer")
    assert str(bad) == "line 4, task q03: data.answer: Input should be a valid string"
