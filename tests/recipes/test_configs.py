"""configs/: every experiment composes, and the paper's settings reach the trainers."""

import subprocess
import sys
from dataclasses import fields

import pytest
from omegaconf import OmegaConf
from trl import GRPOConfig

from recipes.common import trl
from recipes.common.settings import BadSettings, Evaluation, Training
from tests.recipes.composed import EXPERIMENTS, settings
from tests.verl.training import ROOT

# TRL's own default.
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")


@pytest.mark.parametrize(("model", "trainer"), EXPERIMENTS)
def test_every_experiment_can_be_shown(model: str, trainer: str) -> None:
    command = [sys.executable, "-m", "recipes.swebench.train", f"model={model}"]
    command += [f"trainer={trainer}", "--cfg", "job", "--resolve"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = OmegaConf.create(done.stdout)
    assert (shown.model.name, shown.trainer.name) == (model, trainer)
    assert shown.output == f"outputs/swebench-{model}-{trainer}"


def test_there_is_one_file_for_each_experiment() -> None:
    names = {path.stem for path in (ROOT / "configs/experiment").glob("*.yaml")}
    assert names == {"swebench_tiny", *(f"swebench_{m}_{t}" for m, t in EXPERIMENTS)}


@pytest.mark.parametrize(("model", "trainer"), EXPERIMENTS)
def test_every_experiment_is_valid(model: str, trainer: str) -> None:
    composed = settings(Training, "swebench_train", f"model={model}", f"trainer={trainer}")
    is_tiny = model == "tiny"
    assert composed.model.thinking is (True if model in ("qwen3_8b", "qwen3_14b") else None)
    assert composed.sampling.thinking is composed.model.thinking
    assert composed.data.name == ("offline" if is_tiny else "skyrl_293")
    assert composed.sandbox.kind == ("bubblewrap" if is_tiny else "apptainer")
    if trainer == "trl":
        assert set(composed.arguments()) <= {field.name for field in fields(GRPOConfig)}


@pytest.mark.parametrize("data", ["skyrl_293", "verified", "lite", "full", "swe_gym", "offline"])
def test_data_sets_and_clusters_can_be_chosen(data: str) -> None:
    composed = settings(Evaluation, "swebench_evaluate", "model=qwen3_4b", f"data={data}")
    assert f"--dataset {data}" in composed.data.make
    assert composed.data.rows.parent.name == data


def test_the_papers_settings_reach_trl() -> None:
    composed = settings(Training, "swebench_train", "model=qwen3_8b", "trainer=trl", "cluster=cpu")
    arguments = trl.arguments(composed)
    assert arguments.num_generations == 8
    assert arguments.generation_batch_size == 32 * 8
    assert arguments.gradient_accumulation_steps * arguments.train_batch_size == 8 * 8
    assert arguments.steps_per_generation == 4 * arguments.gradient_accumulation_steps
    assert arguments.max_steps == 66 * 4
    assert (arguments.epsilon, arguments.epsilon_high, arguments.beta) == (0.2, 0.28, 1e-4)
    assert (arguments.learning_rate, arguments.temperature, arguments.top_p) == (1e-6, 1.0, 1.0)
    assert arguments.loss_type == "dapo"


def test_updates_that_processes_cannot_share_are_refused() -> None:
    composed = settings(
        Training,
        *("swebench_train", "model=qwen3_8b", "trainer=trl", "cluster=cpu"),
        "trainer.arguments.per_device_train_batch_size=48",
    )
    with pytest.raises(BadSettings, match="64 rollouts cannot be divided by 48"):
        trl.arguments(composed)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["steps=0"], "steps: "),
        (["algorithm.prompts_per_update=3"], "prompts_per_step must be a multiple"),
        (["agent.limits.max_turns=many"], "agent.limits.max_turns: "),
        (["model.path=null"], "set `path`, or `warm_start`"),
        (["service.url=here"], "service.url: "),
        (["steps=???"], "steps"),
    ],
)
def test_wrong_values_are_named(overrides: list[str], problem: str) -> None:
    with pytest.raises(BadSettings, match=problem):
        settings(Training, "swebench_train", "model=qwen3_8b", *overrides)
