"""The trainer takes the rows that were sampled: a subclass that changes them ends it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from prorl_service.client.off_policy import PolicyDiffers
from tests.trl.training import Trainings

pytestmark = pytest.mark.processes
Dict = dict[str, Any]


def after(method: str, change: Callable[[Any], Any]) -> type[GRPOTrainer]:
    """Returns a trainer whose `method` returns something else."""

    def changed(self: Any, *args: Any, **given: Any) -> Any:
        return change(getattr(super(kind, self), method)(*args, **given))

    kind = type("Changing", (GRPOTrainer,), {method: changed})
    return kind


def before(method: str, change: Callable[[Dict], Dict]) -> type[GRPOTrainer]:
    """Returns a trainer whose `method` computes a loss of other inputs."""

    def changed(self: Any, model: Any, inputs: Dict, **given: Any) -> Any:
        return getattr(super(kind, self), method)(model, {**inputs, **change(inputs)}, **given)

    kind = type("Changing", (GRPOTrainer,), {method: changed})
    return kind


def each(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Dict], Dict]:
    """Returns a change of all tensors with rows."""

    def changed(batch: Dict) -> Dict:
        return {
            name: change(value) if isinstance(value, torch.Tensor) and value.ndim else value
            for name, value in batch.items()
        }

    return changed


def without_first_token(inputs: Dict) -> Dict:
    mask = inputs["completion_mask"].clone()
    mask[0, 0] = 0
    return {"completion_mask": mask}


def with_another_token(inputs: Dict) -> Dict:
    ids = inputs["completion_ids"].clone()
    ids[0, 0] = (ids[0, 0] + 1) % 300
    return {"completion_ids": ids}


def with_tools(output: Dict) -> Dict:
    return {**output, "tool_mask": torch.ones_like(output["tool_mask"])}


def cut(output: Dict) -> Dict:
    shape = output["completion_ids"].shape
    return each(lambda one: one[:, :-1] if one.shape == shape else one)(output)


def with_cut_prompts(made: Any) -> Any:
    prompt_ids, *others = made
    return [ids[1:] for ids in prompt_ids], *others


def with_shifted_logprobs(made: Any) -> Any:
    *first, logprobs, extra, images, tools = made
    return *first, [[0.0, *one[:-1]] for one in logprobs], extra, images, tools


SCORED = "_generate_and_score_completions"
DROPPED, REPEATED = each(lambda one: one[:-1]), each(lambda one: torch.cat([one[:1], one[:-1]]))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            before("_compute_loss", without_first_token),
            "tokens of rollout .*, which has .* to learn from",
        ),
        (after(SCORED, with_tools), "tokens of rollout .*, which has .* to learn from"),
        (after("_prepare_inputs", DROPPED), "takes 7 rows of the 8 given"),
        (after("_prepare_inputs", REPEATED), "more often than num_iterations=1"),
        (after(SCORED, cut), "tokens that no rollout of this step has"),
        (before("compute_loss", with_another_token), "tokens that no rollout of this step has"),
        (after("_generate", with_cut_prompts), "tokens that no rollout of this step has"),
        (after("_generate", with_shifted_logprobs), "other logprobs of rollout"),
    ],
)
def test_a_subclass_that_changes_rows_is_stopped_before_its_first_step(
    train: Trainings, kind: type[GRPOTrainer], message: str
) -> None:
    trainer = train.trainer(trainer_class=kind)
    with pytest.raises(PolicyDiffers, match=f"step 1: .*{message}") as error:
        trainer.train()
    assert "a subclass of the trainer" in error.value.hint
    assert trainer.state.global_step == 0
