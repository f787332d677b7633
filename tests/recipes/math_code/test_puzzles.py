"""Puzzles as a data set: disjoint splits, levels, what is refused; and training on them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prorl_service.errors import InvalidRequest
from prorl_service.rewards.reasoning import Puzzle, check_puzzle
from prorl_service.schemas import Difficulty
from recipes.math_code.data.puzzles import Puzzles, source, split_of
from recipes.math_code.prepare import Options, prepare
from recipes.math_code.rows import ReasoningProblem, read_rows
from tests.puzzles import needs_library
from tests.recipes.commands import progress, running
from tests.recipes.math_code.runs import QUICK, check_weights_changed

pytestmark = [needs_library, pytest.mark.processes]


@given(st.text(min_size=1), st.sampled_from([" ", "\n", "\t "]))
def test_a_question_is_in_one_split_however_it_is_spaced(question: str, space: str) -> None:
    spaced = space + space.join(question.split()) + space
    assert split_of(spaced) == split_of(question) in ("train", "heldout")


def test_a_fifth_of_all_questions_is_held_out() -> None:
    held_out = sum(split_of(f"{number} + 1 =") == "heldout" for number in range(5000))
    assert 850 < held_out < 1150


async def prepared(directory: Path, split: str, seed: int) -> list[ReasoningProblem]:
    chosen = Puzzles(("chain_sum", "isomorphic_strings"), (0, 2), count=12, seed=seed)
    options = Options("reasoning_gym", directory, split=split, workers=1, puzzles=chosen)
    manifest = await prepare(options)
    rows = [row for row in read_rows(directory / "rows.jsonl") if row.kind == "reasoning_gym"]
    assert manifest.problems == len(rows) == len({row.question for row in rows})
    assert (manifest.split, manifest.rejected, manifest.repeated) == (split, {}, 0)
    assert manifest.puzzles == {
        "generators": ("chain_sum", "isomorphic_strings"),
        "levels": (0, 2),
        "count": 12,
        "seed": seed,
    }
    return rows


@pytest.mark.slow
async def test_splits_share_no_question_whatever_the_seeds(tmp_path: Path) -> None:
    train = await prepared(tmp_path / "train", "train", 1)
    others = await prepared(tmp_path / "other", "heldout", 2)
    same = await prepared(tmp_path / "same", "heldout", 1)
    questions = {row.question for row in train}
    assert len(questions) == 4 * 12
    assert questions.isdisjoint(row.question for row in [*others, *same])
    assert {row.problem_id for row in others}.isdisjoint(row.problem_id for row in same)
    again = await prepared(tmp_path / "train", "train", 1)
    assert again == train
    for level in (0, 2):
        of_level = read_rows(tmp_path / f"train/level-{level}.jsonl")
        assert of_level == [row for row in train if row.level == level]
    for row in train:
        task = row.task({})
        assert task.difficulty == Difficulty(kind=row.generator, level=row.level or 0)
        puzzle = Puzzle.model_validate({key: task.data[key] for key in Puzzle.model_fields})
        assert check_puzzle(puzzle.model_dump_json(), task.messages[0].content) == 1.0
        assert (puzzle.entry is None) is (row.generator == "chain_sum")


@pytest.mark.slow
def test_a_level_that_the_library_cannot_make_is_given_up_with_its_reason() -> None:
    rows = list(source(Puzzles(("caesar_cipher",), (2,)), "train").rows)
    assert len(rows) == 3
    assert all("rotation must be in range" in row["fault"] for row in rows)


@pytest.mark.parametrize(
    ("options", "split", "problem", "hint"),
    [
        (Puzzles(("chain_summ",)), "train", "there is no 'chain_summ'", "chain_sum"),
        (Puzzles(("countdown",)), "train", "'countdown' is refused: its verifier evaluates", ""),
        (Puzzles(("chain_sum",), (99,)), "train", "no generator has any of these levels", ""),
        (Puzzles(), "test", "there is no 'test', only train and heldout", ""),
    ],
)
def test_bad_options_are_refused_before_anything_is_made(
    options: Puzzles, split: str, problem: str, hint: str
) -> None:
    with pytest.raises(InvalidRequest, match=problem) as refused:
        source(options, split)
    assert hint in refused.value.hint


def learned(output: Path) -> list[dict[str, Any]]:
    state = json.loads((output / "checkpoints/checkpoint-2/trainer_state.json").read_text())
    return [one for one in state["log_history"] if "reward" in one]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_tiny_model_is_trained_on_puzzles_with_a_curriculum(tmp_path: Path) -> None:
    options = Puzzles(("chain_sum",), (0, 1, 2), count=16)
    rows = [json.dumps(row) for row in source(options, "train").rows]
    (tmp_path / "rows.jsonl").write_text("".join(f"{row}\n" for row in rows))
    output = tmp_path / "output"
    overrides = [
        *("task=reasoning_gym", "model=tiny", "trainer=trl", *QUICK, f"output={output}"),
        *(f"data.rows={tmp_path / 'rows.jsonl'}", "algorithm.rollouts_per_device=8"),
        *("algorithm.curriculum={seed:1}", "model.warm_start.steps=150"),
        *("sandbox.run_workers=8", "sandbox.kind=process"),
    ]
    with running("recipes.math_code.train", tmp_path / "log", *overrides) as command:
        assert command.wait() == 0, command.said
    steps = progress(output)
    assert [one["step"] for one in steps] == [1, 2]
    assert all(0 < one["trained_on"] < 1 for one in steps)
    assert all(one["prorl/reward/correct"] == one["trained_on"] for one in steps)
    logs = learned(output)
    assert all(one["grad_norm"] > 0 and one["prorl/failed"] == 0 for one in logs)
    levels = {
        key.split("/")[3] for one in logs for key in one if key.startswith("prorl/difficulty")
    }
    assert levels
    assert levels <= {"0", "1", "2"}
    check_weights_changed(output, output / "model")
