"""Failed rollouts and TRL's arithmetic: advantages and logged rewards, calculated by hand."""

import random
from collections.abc import Callable, Sequence
from math import isnan, nan
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from prorl_service.schemas import Rollout
from prorl_trl import ProRLRollout
from tests.trl import made_rollouts
from tests.trl.made_rollouts import FAILURES
from tests.trl.training import RecordingTrainer, logged, make_trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:dynamic_sampling trains on other prompts:UserWarning",
)
N, TASKS = 4, 3
Table = list[list[float]]


def length(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Rewards every row, that of a failed rollout most."""
    return [5.0 / len(ids) for ids in completion_ids]


def sometimes(prorl_turns: list[int], **_: Any) -> list[float | None]:
    """Has no opinion about some rows."""
    return [None if index % 3 == 1 else float(index % 4) for index in range(len(prorl_turns))]


async def awaited(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [ids[0] / 100 for ids in completion_ids]


# --- TRL's formulas, over the rows that may be scored -------------------------------------------


def deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else nan


def combined(rewards: Sequence[float], weights: Sequence[float]) -> float:
    return sum(w * one for w, one in zip(weights, rewards, strict=True) if not isnan(one))


def standardised(group: Table) -> Table:
    """Standardises each function's rewards over a group."""
    columns = list(zip(*group, strict=True))
    known = [[one for one in column if not isnan(one)] for column in columns]
    return [
        [(one - fmean(known[k] or [nan])) / (deviation(known[k]) + 1e-4) for k, one in enumerate(r)]
        for r in group
    ]


def by_hand(table: Table, failed: Sequence[bool], options: dict[str, Any]) -> list[float]:
    """Returns the advantages; those of failed rows are 0."""
    weights = options.get("reward_weights") or [1.0] * len(table[0])
    scale = options.get("scale_rewards", "group")
    groups = [range(start, start + N) for start in range(0, len(table), N)]
    kept = [[row for row in group if not failed[row]] for group in groups]
    if options.get("multi_objective_aggregation") == "normalize_then_sum":
        sums = {
            row: combined(one, weights)
            for group in kept
            for row, one in zip(group, standardised([table[r] for r in group]), strict=True)
        }
        mean, spread = fmean(sums.values()), deviation([*sums.values()])
        raw = {row: (one - mean) / (spread + 1e-4) for row, one in sums.items()}
    else:
        sums = {row: combined(table[row], weights) for group in kept for row in group}
        of_batch, raw = deviation([*sums.values()]), {}
        for group in kept:
            values = [sums[row] for row in group]
            spread = of_batch if scale == "batch" else deviation(values)
            divisor = 1.0 if scale == "none" else spread + 1e-4
            raw |= {row: (sums[row] - fmean(values)) / divisor for row in group}
    return [0.0 if isnan(raw.get(row, nan)) else raw[row] for row in range(len(table))]


# --- a step of TRL's own, on rollouts that the test made ----------------------------------------


def made_step(
    policy: Path,
    failures: Sequence[str | None],
    rewards: Callable[[int], float] = lambda number: float(number * number % 7),
) -> list[Rollout]:
    last_id = AutoTokenizer.from_pretrained(policy).eos_token_id
    return [
        made_rollouts.rollout(number // N, number % N, rewards(number), failure, last_id=last_id)
        for number, failure in enumerate(failures)
    ]


def train(
    policy: Path,
    directory: Path,
    made: list[Rollout],
    functions: Sequence[Any],
    *,
    trainer_class: type[RecordingTrainer] = RecordingTrainer,
    steps: int = 1,
    dynamic_sampling: bool = False,
    **options: Any,
) -> RecordingTrainer:
    for step in range(1, steps + 1):
        saved = made_rollouts.save(directory / "saved", made, step)
    rollouts = ProRLRollout("http://unused", replay=saved, dynamic_sampling=dynamic_sampling)
    own: dict[str, Any] = {
        "per_device_train_batch_size": N * TASKS,
        "max_steps": steps,
        "num_train_epochs": 9,
    }
    tokenizer = AutoTokenizer.from_pretrained(policy)
    classes = [tokenizer if isinstance(one, torch.nn.Module) else None for one in functions]
    trainer: RecordingTrainer = make_trainer(
        rollouts,
        policy,
        directory,
        faults=[None] * TASKS,
        options=own | options,
        trainer_class=trainer_class,
        functions=functions,
        reward_processing_classes=[None, *classes],
    )
    trainer.train()
    return trainer


def random_failures(seed: int) -> list[str | None]:
    """Returns failures of whole groups, of all but one, of some, and of none."""
    draw = random.Random(seed)
    shares = draw.sample([0.0, 0.3, 0.75, 1.0, 0.5], TASKS)
    failures = [
        draw.choice(FAILURES) if draw.random() < share else None
        for share in shares
        for _ in range(N)
    ]
    if not any(failure is None for failure in failures):
        failures[draw.randrange(len(failures))] = None
    return failures


SETTINGS: list[dict[str, Any]] = [
    {},
    {"scale_rewards": "batch", "loss_type": "grpo"},
    {"scale_rewards": "none", "loss_type": "dr_grpo"},
    {"multi_objective_aggregation": "normalize_then_sum", "loss_type": "bnpo"},
]


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", SETTINGS, ids=lambda one: "-".join(map(str, one.values())))
def test_advantages_are_those_of_the_scorable_rows(
    policy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    seed: int,
) -> None:
    failures = random_failures(seed)
    if seed == 1:
        options = options | {"reward_weights": [0.5, 2.0, 1.0, 0.25]}
    made = made_step(policy, failures)
    trainer = train(policy, tmp_path, made, [length, sometimes, awaited], **options)
    failed = [failure is not None for failure in failures]
    assert any(failed)
    expected = by_hand(trainer.table, failed, options)
    assert trainer.advantages == pytest.approx(expected, abs=2e-4, rel=1e-3)
    weights = options.get("reward_weights") or [1.0] * 4
    rows = [one for one, is_out in zip(trainer.table, failed, strict=True) if not is_out]
    sums = [combined(one, weights) for one in rows]
    assert logged(trainer, "reward") == [pytest.approx(fmean(sums), rel=1e-4)]
    assert logged(trainer, "reward_std") == [pytest.approx(deviation(sums), rel=1e-3, nan_ok=True)]
    mean_length = pytest.approx(fmean(one[1] for one in rows), rel=1e-4)
    assert logged(trainer, "rewards/length/mean") == [mean_length]


def test_equal_successes_beside_a_failure_teach_nothing(policy: Path, tmp_path: Path) -> None:

    def constant(completion_ids: list[Any], **_: Any) -> list[float]:
        return [0.1] * len(completion_ids)

    failures = [None, None, None, "backend"] * TASKS
    made = made_step(policy, failures, rewards=lambda _: 1.0)
    trainer = train(policy, tmp_path, made, [constant])
    assert trainer.advantages == [0.0] * N * TASKS
    assert logged(trainer, "reward") == [pytest.approx(1.1)]
    assert logged(trainer, "grad_norm") == [0.0]


def test_a_reward_model_is_not_asked_about_failed_rollouts(policy: Path, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(policy, num_labels=1)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config)
    failures = [None, "sandbox", None, None] * TASKS
    trainer = train(policy, tmp_path, made_step(policy, failures), [model])
    failed = [failure is not None for failure in failures]
    assert all(len({*column}) > 1 for column in zip(*trainer.table, strict=True))
    assert trainer.advantages == pytest.approx(by_hand(trainer.table, failed, {}), abs=2e-4)


def test_rows_that_dynamic_sampling_could_not_fill_are_not_scored(
    policy: Path, tmp_path: Path
) -> None:
    found = made_step(policy, [None] * N)  # of the three groups that the step has room for
    options: dict[str, Any] = {"scale_rewards": "batch"}
    trainer = train(policy, tmp_path, found, [length], dynamic_sampling=True, **options)
    failed = [False] * N + [True] * N * (TASKS - 1)
    expected = by_hand(trainer.table, failed, options)
    assert trainer.advantages == pytest.approx(expected, abs=2e-4, rel=1e-3)
    assert logged(trainer, "prorl/failed") == [pytest.approx(2 / 3)]


def test_the_loss_is_that_of_the_scorable_rows(policy: Path, tmp_path: Path) -> None:
    """What stands in a failed row moves neither loss nor gradient."""
    failures = [None, "agent", None, None] * TASKS
    logs = []
    for factor in (1, 1000):

        def scaled(prorl_failure: list[str | None], factor: int = factor, **_: Any) -> list[float]:
            return [0.5 if one is None else float(factor) for one in prorl_failure]

        trainer = train(policy, tmp_path, made_step(policy, failures), [scaled])
        logs.append([logged(trainer, name) for name in ("loss", "grad_norm", "reward")])
    assert logs[0] == logs[1]
    assert logs[0][1][0] > 0


def test_a_trainer_that_goes_round_the_table_is_stopped(policy: Path, tmp_path: Path) -> None:
    class Own(RecordingTrainer):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            made = super()._generate(*args, **kwargs)
            self.__dict__.pop("_calculate_rewards", None)  # as if it computed rewards by itself
            return made

    made = made_step(policy, [None] * N * TASKS)
    with pytest.raises(RuntimeError, match="Own trained on rows without `_calculate_rewards`"):
        train(policy, tmp_path, made, [], trainer_class=Own, steps=2)
