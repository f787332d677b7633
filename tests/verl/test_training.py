"""VeRL's stock command with `rollout=prorl`: real training, the service and every sandbox in
processes of their own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue
from transformers import AutoTokenizer

from prorl_service.client import RolloutClient
from prorl_service.client.saved import SavedStep, read_rollouts, read_tasks, saved_steps
from prorl_service.local import LocalProcess
from prorl_service.schemas import TERMINAL_STATES, Replay
from prorl_verl import task_payload
from tests.parts import trajectory_of
from tests.verl.data import row, write_rows
from tests.verl.training import CompletedRun, run_main_ppo

pytestmark = pytest.mark.timeout(1800)

PRORL = {
    "--config-name": "prorl_ppo_trainer",
    "rollout": "prorl",
    # A random policy does not end its turns; with this limit it has two.
    "prorl.max_tokens_per_turn": 10,
    "data.max_response_length": 40,
}
EXACT = 1e-6
"""Largest difference of a probability between engine and trainer, in fp32."""
EXACT_NATS = 1e-5
"""Largest mean difference of a step's logprobs."""
SOLUTION: list[JsonValue] = ["begun", "abc"]
DIFFERENCE = "training/rollout_probs_diff_max"


def write_tasks(directory: Path, *tasks: dict[str, Any]) -> None:
    """Writes one task for each `task.data`."""
    rows = [
        row(f"count to {number}", index=number)
        | {
            "prorl": task_payload(
                task_id=f"count-{number}", agent="shell", data=data, solution=SOLUTION
            )
        }
        for number, data in enumerate(tasks)
    ]
    write_rows(directory / "train.parquet", rows)
    write_rows(directory / "val.parquet", rows[:2])


def train(directory: Path, url: str, **overrides: object) -> CompletedRun:
    settings = {key.replace("__", "."): value for key, value in overrides.items()}
    return run_main_ppo(directory, {**PRORL, "prorl.url": url, **settings})


def assert_nothing_is_left(service: LocalProcess, run: CompletedRun) -> None:
    assert run.survivors == []
    with RolloutClient(service.url) as client:
        status = client.status()
    assert set(status.rollouts) <= TERMINAL_STATES


def test_the_stock_command_trains(directory: Path, service: LocalProcess) -> None:
    write_tasks(directory, *[{}] * 16)
    run = train(
        directory,
        service.url,
        trainer__total_training_steps=3,
        trainer__val_before_train=True,
        trainer__rollout_data_dir=directory / "dump",
        trainer__validation_data_dir=directory / "dump-val",
        prorl__save=directory / "saved",
        **{"prorl.overlong": "{max_tokens: 20, buffer_tokens: 8}"},
    )
    steps = [one for one in run.metrics if DIFFERENCE in one]
    assert len(steps) == 3
    assert all(one[DIFFERENCE] < EXACT for one in steps)
    assert all(one["prorl/off_policy"] < EXACT_NATS for one in steps)
    assert all(one["actor/grad_norm"] > 0 for one in steps)
    assert all(one["num_turns/mean"] == 2 for one in steps)
    (validation,) = [one for one in run.metrics if "val-core/tiny/acc/mean@1" in one]
    assert 0 < validation["val-core/tiny/acc/mean@1"] < 1
    assert validation["val-prorl/failed"] == 0
    assert validation["val-prorl/reward"] == pytest.approx(validation["val-core/tiny/acc/mean@1"])
    assert validation["val-prorl/reward/letters"] > 0
    assert [one["prorl/failed"] for one in steps] == [0, 0, 0]
    assert [one["prorl/turns"] for one in steps] == [2, 2, 2]
    assert [one["prorl/policy_lag"] for one in steps] == [0, 0, 0]
    assert all(0 < one["prorl/rollout_s"] <= one["prorl/rollout_max_s"] for one in steps)
    assert any(line.endswith(f"watch the rollouts at {service.url}") for line in run.lines)
    assert_reported(service.url, steps)
    assert_saved(directory / "saved", directory / "dump", steps=[1, 2, 3], rollouts=16)
    assert_dumped_text(directory / "dump-val" / "0.jsonl", rollouts=2)
    assert len([*read_rollouts(directory / "saved" / "eval-000000.jsonl")]) == 2
    assert_nothing_is_left(service, run)


def assert_reported(url: str, steps: Sequence[dict[str, float]]) -> None:
    """The service has what VeRL logged, by the version that sampled what each step trained on."""
    names = ["actor/grad_norm", "actor/pg_loss", "critic/rewards/mean", DIFFERENCE]
    with RolloutClient(url) as client:
        found = client.training(metrics=names)
    assert "prorl/turns" in found.metric_names
    versions = [one.policy_version for one in found.versions]
    for name in names:
        assert found.metrics[name].policy_versions == versions == [0, 1, 2]
        assert found.metrics[name].values == pytest.approx([one[name] for one in steps])


def assert_saved(saved: Path, dump: Path, *, steps: Sequence[int], rollouts: int) -> None:
    """Every row that VeRL trained on in a step is in the step's file, token for token."""
    tokenizer = AutoTokenizer.from_pretrained(saved.parent / "model")
    files = [SavedStep(number).file_name for number in steps]
    assert sorted(path.name for path in saved.glob("step-*")) == files
    for number, file in zip(steps, files, strict=True):
        kept = {one.rollout_id: one for one in read_rollouts(saved / file)}
        assert len(kept) == rollouts
        assert {one.task_id for one in kept.values()} <= read_tasks(saved).keys()
        for dumped in assert_dumped_text(dump / f"{number}.jsonl", rollouts=rollouts):
            uid, session, _ = dumped["uid"].rsplit("_", 2)
            of_group = [
                one for one in kept.values() if uid in one.rollout_id and one.index == int(session)
            ]
            assert len(of_group) == 1
            assert of_group[0].trajectory is not None
            [segment] = of_group[0].trajectory.segments
            text = tokenizer.decode(segment.response_ids, skip_special_tokens=True)
            assert dumped["output"] == text


def assert_dumped_text(file: Path, *, rollouts: int) -> list[dict[str, Any]]:
    """VeRL's own dump shows all turns, and what tools answered between them."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == rollouts
    assert all("count to" in row["input"] for row in rows)
    assert all("<tool_response>" in row["output"] for row in rows)
    return rows


@pytest.mark.on_demand
def test_a_users_reward_function_scores_rollouts_of_the_service(
    directory: Path, service: LocalProcess
) -> None:
    write_tasks(directory, *[{}] * 8)
    run = train(
        directory,
        service.url,
        trainer__val_before_train=True,
        reward__custom_reward_function__path=Path(__file__).with_name("rewards.py"),
        reward__custom_reward_function__name="lower_case_and_more",
    )
    steps = [one for one in run.metrics if DIFFERENCE in one]
    assert len(steps) == 2
    assert all(10 <= one["critic/score/min"] <= one["critic/score/max"] <= 11 for one in steps)
    assert all(one["actor/grad_norm"] > 0 for one in steps)
    (validation,) = [one for one in run.metrics if "val-core/tiny/acc/mean@1" in one]
    assert 10 < validation["val-aux/tiny/score/mean@1"] < 11
    assert (
        0
        < validation["val-aux/tiny/service/mean@1"]
        == validation["val-aux/tiny/prorl_reward/mean@1"]
    )
    assert_nothing_is_left(service, run)


@pytest.mark.on_demand
def test_a_prompt_whose_rollouts_all_fail_is_replaced(
    directory: Path, service: LocalProcess
) -> None:
    write_tasks(directory, *[{}, {"fault": True}, {}, {}] * 4)
    saved = directory / "saved"
    run = train(directory, service.url, data__shuffle=False, prorl__save=saved)
    assert len(run.values(DIFFERENCE)) == 2
    assert sum(run.values("training/rollout_failure/evicted_samples")) >= 1
    assert sum(run.values("prorl/failed/agent")) > 0
    assert any("4 of 4 rollouts of task count-1 failed" in line for line in run.lines)
    kept = [[*read_rollouts(saved / step.file_name)] for step in saved_steps(saved)]
    assert len(kept) == 2
    assert sum(one.error is not None for some in kept for one in some) >= 4
    assert all(sum(one.error is None for one in some) >= 16 for some in kept)


def test_dynamic_sampling_trains_only_on_informative_groups(
    directory: Path, service: LocalProcess
) -> None:
    kinds: list[dict[str, Any]] = [{}, {"easy": True}, {"begins": SOLUTION[0]}]
    write_tasks(directory, *kinds * 8)
    run = train(
        directory,
        service.url,
        data__shuffle=False,
        prorl__dynamic_sampling__head_start=True,
        trainer__total_training_steps=3,
        algorithm__filter_groups__enable=True,
        algorithm__filter_groups__metric="acc",
        trainer__rollout_data_dir=directory / "dump",
        prorl__save=directory / "saved",
    )
    assert all(value < EXACT for value in run.values(DIFFERENCE))
    assert sum(run.values("prorl/sampling/uninformative")) > 0
    assert_saved(directory / "saved", directory / "dump", steps=[1, 2, 3], rollouts=16)
    assert run.values("prorl/sampling/carried") == [0, 0, 0]
    assert all(value > 0 for value in run.values("prorl/reward/letters"))
    for file in sorted((directory / "dump").glob("*.jsonl")):
        dumped = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(dumped) == 16
        assert all(one["score"] < 1 for one in dumped)
    assert_began(directory / "saved")
    assert_nothing_is_left(service, run)


def assert_began(saved: Path) -> None:
    """Rollouts of tasks that nobody solves began with a masked turn of the solution."""
    kept = [one for step in saved_steps(saved) for one in read_rollouts(saved / step.file_name)]
    begun = [one for one in kept if int(one.task_id.partition("-")[2]) % 3 == 2]
    assert begun
    for one in kept:
        assert one.replay == (Replay(turns=1) if one in begun else None)
    for one in begun:
        [segment] = trajectory_of(one).segments
        [turn, last] = trajectory_of(one).turns
        assert (turn.text, turn.is_replayed) == (SOLUTION[0], True)
        assert sum(segment.loss_mask) == last.stop - last.start


@pytest.mark.on_demand
def test_rollouts_continue_over_updates_of_the_weights(
    directory: Path, service: LocalProcess
) -> None:
    """Half of them pause longer than a step takes."""
    write_tasks(directory, *[{}, {"pause_s": 3}] * 8)
    run = train(
        directory,
        service.url,
        data__shuffle=False,
        trainer__total_training_steps=4,
        trainer__v1__trainer_mode="colocate_async",
        algorithm__filter_groups__enable=True,
        algorithm__filter_groups__metric="acc",
        prorl__dynamic_sampling__oversubscription=1,  # otherwise a step begins the next one's
    )
    spans = run.values("training/off_policy/trajectory_spans/max")
    assert max(spans) == 2
    assert run.values(DIFFERENCE)[0] < EXACT
    assert sum(run.values("prorl/sampling/carried")) > 0
    assert_nothing_is_left(service, run)
