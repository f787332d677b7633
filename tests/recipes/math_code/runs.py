"""Arguments for the recipe's commands in tests, and checks of what their runs leave."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors.torch import load_file

from recipes.common.data.splits import Split
from recipes.math_code.offline import code, look, math, stem
from recipes.math_code.rows import Problem, write_rows
from tests.recipes.commands import progress

PROBLEMS: dict[str, Callable[[Split], Sequence[Problem]]] = {
    "math": math.problems,
    "code": code.problems,
    "stem": lambda _: stem.problems(),
    "look": look.problems,
}
SOLVED = {"math": "correct", "code": "all_passed", "stem": "correct", "look": "correct"}
"""Reward component that equals the reward, by task."""
COUNT = 24


def given(task: str, directory: Path, split: Split = "train") -> list[str]:
    """Returns overrides for a quick run on offline problems; it writes to `directory`/output."""
    rows = directory / "rows.jsonl"
    write_rows(rows, PROBLEMS[task](split)[:COUNT])
    run = [f"task={task}", "model=tiny", f"data.rows={rows}", f"output={directory / 'output'}"]
    return [*run, "sandbox.run_workers=4"]


QUICK = (
    *("steps=2", "save_every_steps=1"),
    *("algorithm.prompts_per_step=2", "algorithm.prompts_per_update=2"),
    "algorithm.rollouts_per_prompt=4",
)
LORA = ("algorithm.lora_rank=4", "algorithm.learning_rate=1e-3")
TRL = ("trainer=trl", *QUICK, "algorithm.rollouts_per_device=8")


def check_trained(task: str, output: Path, *, last_step: int) -> None:
    """Checks that rewards are the grader's and that no group of equal rewards was trained on."""
    steps = progress(output)
    assert steps[-1]["step"] == last_step
    assert all(one[f"prorl/reward/{SOLVED[task]}"] == one["trained_on"] for one in steps)
    assert all(0 < one["trained_on"] < 1 for one in steps)
    assert all(0 < one["mean_reward"] < 1 for one in steps)
    if task == "code":
        assert all(one["prorl/reward/cases"] == 4 for one in steps)
        assert all(one["prorl/reward/cases_run"] >= 1 for one in steps)


def check_weights_changed(output: Path, trained: Path) -> None:
    """Checks that most weights of linear layers in directory `trained` differ from the warm-started
    ones."""
    run = min((output / "runs").iterdir())
    before = json.loads((run / "versions.json").read_text())["model"]["directory"]
    old, new = (load_file(path / "model.safetensors") for path in (Path(before), trained))
    assert old.keys() == new.keys()
    linear = [name for name in old if name.endswith("_proj.weight")]
    changed = sum(int((old[name] != new[name]).sum()) for name in linear)
    assert changed > sum(old[name].numel() for name in linear) / 2
