"""Conversion of rows of a data set to tasks and groups."""

from typing import Any

import pytest

from prorl_service.schemas import Limits, Sampling
from prorl_verl import task_payload
from prorl_verl.tasks import group_of, task_of

PROMPT = [{"role": "user", "content": "What is 17 times 3?"}]


def test_the_prorl_column_defines_the_task() -> None:
    payload = task_payload(task_id="t1", agent="swe", data={"repo": "x"}, image="i.sif")
    task = task_of({"raw_prompt": PROMPT, "prorl": payload}, agent="math", image="other.sif")
    assert (task.task_id, task.agent, task.image, task.data) == (
        "t1",
        "swe",
        "i.sif",
        {"repo": "x"},
    )
    assert task.messages[0].content == "What is 17 times 3?"


def test_a_data_set_of_verl_needs_no_prorl_column() -> None:
    row = {"raw_prompt": PROMPT, "reward_model": {"style": "rule", "ground_truth": 51}}
    task = task_of(row, agent="math", image="math.sif")
    assert task.data == {"answer": "51"}
    assert task.image == "math.sif"
    assert task == task_of(row, agent="math", image="math.sif")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"raw_prompt": PROMPT}, "names no agent"),
        ({"raw_prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content"),
        ({"raw_prompt": PROMPT, "prorl": "no json"}, "Expecting value"),
    ],
)
def test_a_row_that_is_no_task_is_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task_of(row, agent="math" if message != "names no agent" else None, image=None)


def test_a_row_may_have_its_own_group_size_and_be_greedy() -> None:
    row = {"raw_prompt": PROMPT, "__rollout_n__": 3, "__do_sample__": False}
    task = task_of(row, agent="math", image=None)
    limits = Limits(max_response_tokens=7)
    group = group_of(row, task, name="g", n=8, sampling=Sampling(top_k=5), limits=limits)
    assert (group.n, group.sampling.temperature, group.sampling.top_k) == (3, 0.0, 0)
    group = group_of({}, task, name="g", n=8, sampling=Sampling(top_k=5), limits=limits)
    assert (group.n, group.sampling.temperature, group.sampling.top_k) == (8, 1.0, 5)
    assert group.lease_s is not None
