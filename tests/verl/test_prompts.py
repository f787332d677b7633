"""Conversion of a batch from VeRL's trainer to groups of the service."""

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from prorl_service.schemas import Sampling
from prorl_verl.prompts import prompts_of
from prorl_verl.settings import Settings

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


def test_a_row_that_is_no_task_is_refused() -> None:
    nobody = SETTINGS.model_copy(update={"agent": None})
    with pytest.raises(ValueError, match="names no agent"):
        prompts_of(batch(), nobody, run_id="r", sampling=Sampling(), n=1, partition="train")
