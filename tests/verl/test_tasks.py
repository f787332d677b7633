"""Conversion of rows of a data set, and of batches of VeRL's trainer, to tasks and groups."""

from typing import Any

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from prorl_service.schemas import Limits, Sampling
from prorl_verl import task_payload
from prorl_verl.settings import Settings
from prorl_verl.tasks import group_of, prompts_of, task_of

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
        ({"raw_prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0: part 0"),
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


MESSAGES = [[{"role": "user", "content": text}] for text in ("one", "two")]
SETTINGS = Settings(url="http://x", tokenizer="m", agent="math")


def batch(**changes: object) -> TensorDict:
    columns = {
        "raw_prompt": NonTensorStack(*(NonTensorData(one) for one in MESSAGES)),
        "uid": NonTensorStack("a-1", "b-2"),
        "reward_model": NonTensorStack({"ground_truth": "1"}, {"ground_truth": "2"}),
        "global_steps": NonTensorData(7),
        "dummy_tensor": torch.tensor([[0], [1]]),
        **changes,
    }
    return TensorDict(columns, batch_size=[2])


def test_each_row_becomes_a_group() -> None:
    prompts = prompts_of(
        batch(), SETTINGS, run_id="run", sampling=Sampling(), n=4, partition="train"
    )
    assert [one.uid for one in prompts] == ["a-1", "b-2"]
    assert [one.group.group_id for one in prompts] == ["run.a-1", "run.b-2"]
    assert [one.group.n for one in prompts] == [4, 4]
    assert [one.group.task.messages[0].content for one in prompts] == ["one", "two"]
    assert [one.group.task.data["answer"] for one in prompts] == ["1", "2"]
    assert {one.global_steps for one in prompts} == {7}
    assert prompts[1].columns["dummy_tensor"].tolist() == [1]


def test_one_value_may_hold_for_all_rows() -> None:
    same = batch(reward_model=NonTensorData({"ground_truth": "5"}), validate=NonTensorData(True))
    prompts = prompts_of(same, SETTINGS, run_id="r", sampling=Sampling(), n=1, partition="val")
    assert [one.group.task.data["answer"] for one in prompts] == ["5", "5"]
    assert all("validate" not in one.columns for one in prompts)
