"""The commands of recipes: help, errors of Hydra on one line, and what a run would do."""

import re
import sys
from pathlib import Path
from random import Random

import pytest

from prorl_service.errors import ProRLError
from recipes.common.entry import composition, keys_of
from recipes.common.settings import BadSettings
from recipes.math_code import train as math_train

CHOSEN = ["task=math", "model=tiny"]


def refusal(*overrides: str) -> ProRLError:
    with pytest.raises(BadSettings) as caught:
        composition("math_code_train", overrides)
    assert "\n" not in caught.value.message + (caught.value.hint or "")
    assert "+" not in (caught.value.hint or "")
    return caught.value


def test_a_misspelt_setting_is_refused_with_the_nearest() -> None:
    keys = [key for key in keys_of(composition("math_code_train", CHOSEN)) if len(key) > 6]
    rng = Random(0)
    for key in rng.sample(keys, 6):
        at = rng.randrange(key.rfind(".") + 2, len(key))
        misspelt = key[:at] + key[at + 1 :] + "q"
        error = refusal(*CHOSEN, f"{misspelt}=1")
        assert error.message == f"there is no {misspelt}"
        assert key.rpartition(".")[0] in (error.hint or "")


def test_a_choice_that_is_not_there_is_refused_with_the_choices() -> None:
    assert refusal("task=math", "model=qwen3_8").hint == "did you mean qwen3_8b?"
    assert refusal("task=math", "model=xyz").hint == (
        "choices of model: qwen3_14b, qwen3_4b, qwen3_8b, smollm2, tiny"
    )
    missing = refusal("task=math")
    assert missing.message == "model is missing"
    assert "qwen3_8b" in (missing.hint or "")
    refusal(*CHOSEN, "steps")


def test_all_that_is_misspelt_is_in_one_error() -> None:
    wrong = ["task=math", "model=tin", "cluster.node=1", "agent.max_turn=3", "~sed"]
    said = refusal(*wrong).message
    for one in ("model=tin (did you mean tiny?)", "cluster.node (did you mean cluster.nodes?)"):
        assert f"there is no {one}" in said
    assert "there is no sed (did you mean seed?)" in said
    assert "agent.max_turn (did you mean agent.limits.max_turns?)" in said


def test_rollouts_of_verl_are_saved_by_a_setting() -> None:
    given = ["trainer=verl", "trainer.arguments.prorl.save=/rollouts"]
    assert composition("math_code_train", [*CHOSEN, *given]).trainer.arguments.prorl.save


def test_options_of_no_parser_are_refused_with_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", *CHOSEN, "--dryrun", "--cluster=slurm"])
    with pytest.raises(SystemExit):
        math_train.main()
    assert capsys.readouterr().err.splitlines() == [
        "prorl: there is no option --dryrun, --cluster=slurm",
        "  did you mean --dry-run, cluster=slurm?",
    ]


def dry_run(*arguments: str) -> object:
    """Returns the exit status."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["train", *arguments, "--dry-run"])
        with pytest.raises(SystemExit) as ended:
            math_train.main()
    return ended.value.code


def test_help_lists_choices_and_examples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "--help"])
    math_train.main()
    shown = capsys.readouterr().out
    assert re.search(r"^  model +qwen3_14b, .*, tiny$", shown, re.MULTILINE)
    assert "task=math model=qwen3_4b trainer=verl" in shown


def test_a_dry_run_lists_all_that_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["model=qwen3_8b", "data.rows=/nowhere/rows.jsonl", "cluster.gpus_per_node=3"]
    wrong += ["+trainer.arguments.num_generation=3", "service.options=[--run-workrs,64]"]
    assert dry_run("task=math", "trainer=trl", *wrong, "model.path=/nope") == 1
    shown = capsys.readouterr().out
    assert "num_generations: " in shown
    assert "prorl serve --sandbox " in shown
    missing = shown.partition("# Missing\n")[2]
    for said in (
        *("GPUs on this machine", "needs an engine", "/nowhere/rows.jsonl does not exist"),
        *("GRPOConfig has no num_generation", "Unknown option: --run-workrs", "path=/nope is not"),
    ):
        assert said in missing


def test_a_dry_run_for_a_job_leaves_the_jobs_machines_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    dry_run("task=math", "trainer=trl", "model=qwen3_8b", "cluster=slurm")
    shown = capsys.readouterr().out
    assert "GPUs are not checked here" in shown
    assert "which has" not in shown


def test_a_dry_run_without_anything_missing_succeeds(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"kind": "math", "problem_id": "1", "source": "", "question": "6*7?", "answer": "42"}\n'
    )
    assert dry_run(*CHOSEN, "trainer=trl", f"data.rows={rows}", f"output={tmp_path}") == 0
    shown = capsys.readouterr().out
    assert "# Nothing is missing" in shown
    assert f"--journal {tmp_path}/journal.sqlite --resume" in shown
