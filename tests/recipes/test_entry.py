"""The commands of recipes: help, errors of Hydra on one line, and what a run would do."""

import re
import sys
from random import Random

import pytest

from prorl_service.errors import ProRLError
from recipes.common.entry import composition, keys_of
from recipes.common.settings import BadSettings
from recipes.math_code import train as math_train
from recipes.swebench import evaluate as swe_evaluate

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


def test_help_lists_choices_and_examples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "--help"])
    math_train.main()
    shown = capsys.readouterr().out
    assert re.search(r"^  model +qwen3_14b, .*, tiny$", shown, re.MULTILINE)
    assert "task=math model=qwen3_4b trainer=verl" in shown


def test_a_dry_run_lists_all_that_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = ["model=qwen3_8b", "data.rows=/nowhere/rows.jsonl", "cluster.gpus_per_node=3"]
    monkeypatch.setattr(sys, "argv", ["train", "task=math", "trainer=trl", *wrong, "--dry-run"])
    math_train.main()
    shown = capsys.readouterr().out
    assert "num_generations: " in shown
    assert "prorl serve --sandbox " in shown
    missing = shown.partition("# Missing\n")[2]
    for said in ("GPUs on this machine", "needs an engine", "/nowhere/rows.jsonl is not there"):
        assert said in missing
    monkeypatch.setattr(sys, "argv", ["evaluate", "model=tiny", "--dry-run"])
    swe_evaluate.main()
    assert "# Service\nprorl serve" in capsys.readouterr().out
