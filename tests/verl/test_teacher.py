"""On-policy distillation: a teacher's logprobs are those of the very tokens that are trained on.

The teacher is the policy's own first weights, so that in the first step, and only there, both agree
on every token of both turns.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prorl_service.client.trainable import failure_of
from prorl_service.local import LocalProcess
from prorl_service.schemas import Rollout
from prorl_verl.rows import Row
from prorl_verl.scoring import Scoring
from prorl_verl.store import Prompt
from prorl_verl.teacher import Teacher
from prorl_verl.tensors import fields_of
from tests.verl.test_rows import rollout_of, segment
from tests.verl.test_scoring import config_of, prompt_of
from tests.verl.test_training import DIFFERENCE, EXACT, train, write_tasks

EXACT_NATS = 1e-5
DISTILLED = {
    "distillation.enabled": True,
    "distillation.nnodes": 1,
    "distillation.n_gpus_per_node": 1,
    "distillation.distillation_loss.loss_mode": "k1",
    "distillation.distillation_loss.use_policy_gradient": True,
    "distillation.teacher_models.teacher_model.inference.tensor_model_parallel_size": 1,
}


@pytest.mark.timeout(1800)
def test_a_teacher_scores_what_the_policy_sampled(directory: Path, service: LocalProcess) -> None:
    write_tasks(directory, *[{}] * 16)
    teacher = "distillation.teacher_models.teacher_model"
    settings = {
        f"{teacher}.model_path": directory / "model",
        f"{teacher}.inference.max_model_len": 256,
        "ray_kwargs.ray_init.num_gpus": 2,
    }
    run = train(directory, service.url, trainer__val_before_train=True, **DISTILLED, **settings)
    steps = [one for one in run.metrics if DIFFERENCE in one]
    first, second = (one["actor/distillation/loss_max"] for one in steps)
    assert first < EXACT_NATS < second
    assert all(one[DIFFERENCE] < EXACT and one["prorl/failed"] == 0 for one in steps)


class Engines:
    """Clients of teachers' engines, which say the number of a token's place as its logprob."""

    def __init__(self, *keys: str) -> None:
        self.clients = {key: SimpleNamespace(generate=self._of(key)) for key in keys}
        self.asked: list[tuple[str, list[int]]] = []

    def _of(self, key: str) -> Callable[..., Any]:
        async def generate(prompt_ids: list[int], **_: Any) -> Any:
            self.asked.append((key, prompt_ids))
            if key == "broken":
                raise RuntimeError("out of memory")
            places = [[float(place)] for place in range(len(prompt_ids))]
            made = {"prompt_ids": [[id_] for id_ in prompt_ids], "prompt_logprobs": places}
            return SimpleNamespace(extra_fields=made)

        return generate


def score(
    engines: Engines, config: Any, rollout: Rollout, prompt: Prompt
) -> tuple[Rollout, list[Row]]:
    async def run() -> tuple[Rollout, list[Row]]:
        scoring = Scoring(
            overlong=None,
            compute_score=None,
            takes_segments=True,
            teacher=Teacher.of(config, engines.clients),
        )
        (scored,) = await scoring.of(prompt, [rollout])
        return scored

    return asyncio.run(run())


@pytest.fixture
def config(policy: Path) -> Any:
    """Two teachers, chosen by a row's data source."""
    model = "distillation.teacher_models"
    overrides = [
        f"+{model}.{key}={{key: {key}, model_path: m, num_replicas: 1, "
        f"inference: ${{{model}.teacher_model.inference}}}}"
        for key in ("able", "broken")
    ]
    fields = {key: value for key, value in DISTILLED.items() if key.startswith("distillation")}
    given = [f"{key}={value}" for key, value in fields.items()]
    return config_of(policy, *given, *overrides, "distillation.n_gpus_per_node=2")


def test_each_segment_is_scored_by_the_rows_own_teacher(config: Any) -> None:
    engines = Engines("able", "broken")
    parts = [segment([1, 1]), segment([1, 0, 1])]
    _, rows = score(engines, config, rollout_of(parts), prompt_of(data_source="able"))
    whole = [row.prompt_ids + row.response_ids for row in rows]
    assert engines.asked == [("able", ids) for ids in whole]
    for row, ids in zip(rows, whole, strict=True):
        fields = fields_of(row, {})
        assert fields["teacher_ids"].tolist() == [[id_] for id_ in ids]
        assert fields["teacher_logprobs"].tolist() == [[float(n)] for n in range(len(ids))]


def test_a_teachers_failure_costs_the_rollout(config: Any) -> None:
    prompt = prompt_of(data_source="broken")
    engines = Engines("able", "broken")
    rollout, rows = score(engines, config, rollout_of([segment([1])]), prompt)
    failure = failure_of(rollout)
    assert rows == []
    assert failure is not None
    assert (failure.kind, failure.message) == ("TeacherFailed", "RuntimeError: out of memory")


def test_validation_asks_no_teacher(config: Any) -> None:
    engines = Engines("able", "broken")
    prompt = prompt_of(data_source="able")
    prompt = Prompt(prompt.uid, prompt.columns, prompt.group, 1, "val")
    _, [row] = score(engines, config, rollout_of([segment([1])]), prompt)
    assert (engines.asked, row.verl_fields) == ([], {})
