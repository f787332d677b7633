"""configs/: every combination composes, and the paper's settings reach the trainers."""

import subprocess
import sys
from dataclasses import fields
from itertools import product
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from trl import GRPOConfig

from recipes.common.settings import BadSettings, Evaluation, Training
from recipes.common.training import trl
from recipes.math_code.offline import code, math
from recipes.math_code.rows import Problem, ReasoningProblem, StemProblem, write_rows
from recipes.math_code.tasks import problems_of, tasks_of
from tests.recipes.composed_settings import (
    MODELS,
    SMALL,
    TASKS,
    TRAINERS,
    resolved,
    settings,
)
from tests.verl.training import ROOT

# The warning is about a default of TRL's own.
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")

MATRIX = pytest.mark.parametrize(("model", "trainer"), list(product(MODELS, TRAINERS)))

PROBLEMS: dict[str, Problem] = {
    "math": math.problems("train")[0],
    "code": code.problems("train")[0],
    "reasoning_gym": ReasoningProblem(
        problem_id="r", source="here", question="1 + 1 =", generator="chain_sum", seed=1
    ),
    "stem": StemProblem(problem_id="s", source="here", question="H2O?", answer="water"),
}


@pytest.mark.processes
@pytest.mark.parametrize("recipe", ["swebench", "math_code"])
def test_a_command_shows_its_settings(recipe: str) -> None:
    overrides = ["model=tiny", "trainer=trl", *(["task=stem"] if recipe == "math_code" else [])]
    command = [sys.executable, "-m", f"recipes.{recipe}.train", *overrides]
    command += ["--cfg", "job", "--resolve"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert OmegaConf.create(done.stdout) == resolved(f"{recipe}_train", *overrides)


@pytest.mark.parametrize(
    ("group", "tasks"),
    [
        ("experiment", ("swe", "problems")),
        ("scale", ("swe", "problems")),
        ("scale/task", (*TASKS, "look")),
    ],
)
def test_every_optional_file_belongs_to_a_task_and_a_model(
    group: str, tasks: tuple[str, ...]
) -> None:
    """A file with another name would never be added."""
    names = {path.stem for path in (ROOT / "configs" / group).glob("*.yaml")}
    assert names <= {f"{task}_{model}" for task, model in product(tasks, {*MODELS, *SMALL})}


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("task", TASKS)
def test_a_model_without_an_experiment_file_composes(
    task: str, trainer: str, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/own.yaml").write_text("defaults: [qwen3_8b, _self_]\nname: own\n")
    made = settings(
        *(Training, "math_code_train", f"hydra.searchpath=[file://{tmp_path}]"),
        *(f"task={task}", "model=own", f"trainer={trainer}"),
    )
    assert (made.model.name, made.model.path, made.steps) == ("own", "Qwen/Qwen3-8B", 60)


@pytest.mark.parametrize(
    ("model", "devices", "tokens"), [("qwen3_8b", 1, 24576), ("qwen3_14b", 2, 16384)]
)
def test_token_limits_per_device_reach_verl(model: str, devices: int, tokens: int) -> None:
    seen = resolved("math_code_train", "task=math", f"model={model}", "trainer=verl")
    actor = seen.trainer.arguments.actor_rollout_ref.actor
    assert actor.ulysses_sequence_parallel_size == devices
    assert actor.ppo_max_token_len_per_gpu == tokens


@pytest.mark.slow
@MATRIX
def test_every_combination_is_valid(model: str, trainer: str) -> None:
    composed = settings(Training, "swebench_train", f"model={model}", f"trainer={trainer}")
    is_small = model in SMALL
    assert (composed.model.name, composed.trainer.name) == (model, trainer)
    assert composed.output == Path(f"outputs/swebench-{model}-{trainer}")
    assert composed.model.thinking is (True if model in ("qwen3_8b", "qwen3_14b") else None)
    assert composed.sampling.thinking is composed.model.thinking
    assert composed.data.name == ("offline" if is_small else "skyrl_293")
    assert composed.sandbox.kind == ("bubblewrap" if is_small else "apptainer")
    if trainer == "trl":
        assert set(composed.arguments()) <= {field.name for field in fields(GRPOConfig)}


TRAIN = {
    "math": "deepscaler",
    "code": "eurus_code",
    "stem": "scp_116k",
    "reasoning_gym": "reasoning_gym",
}
TEST = {
    "math": "amc23",
    "code": "livecodebench",
    "stem": "scp_116k",
    "reasoning_gym": "reasoning_gym_heldout",
}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("model", [*MODELS, "smollm2"])
def test_every_combination_with_problems_is_valid(task: str, model: str, trainer: str) -> None:
    given = (f"task={task}", f"model={model}")
    composed = settings(Training, "math_code_train", *given, f"trainer={trainer}")
    scored = settings(Evaluation, "math_code_evaluate", *given)
    is_small = model in SMALL
    assert composed.data.name == (f"offline_{task}" if is_small else TRAIN[task])
    assert scored.data.name == (f"offline_{task}" if is_small else TEST[task])
    assert composed.sandbox.kind == ("bubblewrap" if is_small else "auto")
    assert composed.cluster.name == ("cpu" if is_small else "local")
    assert composed.agent.name == scored.agent.name == task
    assert (composed.model.name, composed.trainer.name) == (model, trainer)
    assert composed.output == Path(f"outputs/{task}-{model}-{trainer}")
    assert tasks_of(composed, [PROBLEMS[task]])[0].agent == task
    if trainer == "trl":
        assert set(composed.arguments()) <= {field.name for field in fields(GRPOConfig)}


def test_options_of_the_agent_reach_the_tasks() -> None:
    chosen = settings(
        Training,
        *("math_code_train", "task=math", "model=qwen3_4b", "agent.image=python.sif"),
        *("agent.options.tools=[bash,ipython]", "agent.options.format_reward=0.1"),
    )
    [task] = tasks_of(chosen, [PROBLEMS["math"]])
    assert (task.data["tools"], task.data["format_reward"]) == (["bash", "ipython"], 0.1)
    assert task.image == "python.sif"


@pytest.mark.parametrize(
    ("task", "option", "problem"),
    [
        ("math", "+agent.options.partial_credit=true", "partial_credit: Extra inputs"),
        ("code", "agent.options.memory_mb=1", "memory_mb: Input should be greater"),
        ("stem", "agent.options.judge=perhaps", "judge: Input should be a valid boolean"),
    ],
)
def test_options_that_the_agent_refuses_are_named(task: str, option: str, problem: str) -> None:
    chosen = settings(Training, "math_code_train", f"task={task}", "model=tiny", option)
    with pytest.raises(BadSettings, match=f"agent.options: {problem}"):
        tasks_of(chosen, [PROBLEMS[task]])


def test_problems_for_another_agent_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [PROBLEMS["code"]])
    given = ("task=math", "model=tiny", "data=offline_code", f"data.rows={tmp_path}/rows.jsonl")
    with pytest.raises(BadSettings, match="data=offline_code has problems for task=code"):
        problems_of(settings(Training, "math_code_train", *given))


@pytest.mark.parametrize(
    "data",
    [
        *("deepscaler", "dapo_math_17k", "eurus_math", "eurus_code", "scp_116k", "aime24"),
        *("aime25", "amc23", "livecodebench", "offline_math", "offline_code", "offline_stem"),
    ],
)
def test_data_sets_of_problems_can_be_chosen(data: str) -> None:
    given = ("task=math", "model=tiny", f"data={data}")
    composed = settings(Evaluation, "math_code_evaluate", *given)
    assert f"recipes.math_code.prepare --dataset {data} " in composed.data.make
    assert composed.data.rows.parent.name == data


def test_pass_at_k_needs_at_least_k_seeds() -> None:
    with pytest.raises(BadSettings, match="a k above seeds=3"):
        settings(Evaluation, "math_code_evaluate", "task=math", "model=tiny", "seeds=3")


@pytest.mark.parametrize("data", ["skyrl_293", "verified", "lite", "full", "swe_gym", "offline"])
def test_data_sets_of_the_swe_recipe_can_be_chosen(data: str) -> None:
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
        "algorithm.rollouts_per_device=48",
    )
    with pytest.raises(BadSettings, match="64 rollouts cannot be divided by 48"):
        trl.arguments(composed)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["steps=0"], "steps: "),
        (["algorithm.prompts_per_update=3"], "prompts_per_step must be a multiple"),
        (["agent.limits.max_turns=many"], "agent.limits.max_turns: "),
        (["model.path=null"], "set either `path` or `warm_start`"),
        (["service.url=here"], "service.url: "),
        (["service.url='http://a:8080,http://b:8080'"], "service.url: .* names several services"),
        (["steps=???"], "steps"),
    ],
)
def test_wrong_values_are_named(overrides: list[str], problem: str) -> None:
    with pytest.raises(BadSettings, match=problem):
        settings(Training, "swebench_train", "model=qwen3_8b", *overrides)


@pytest.mark.parametrize("harness", ["pi", "mini_swe_agent", "claude_code", "codex"])
def test_a_harness_takes_the_place_of_the_agents_loop(harness: str) -> None:
    found = settings(
        Evaluation, "swebench_evaluate", "model=qwen3_8b", "agent=swe_harness", f"harness={harness}"
    )
    assert (found.agent.name, found.harness) == ("swe", harness)
    assert found.agent.limits.max_turns == 60


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["harness=pi"], "harness=NAME needs agent=swe_harness"),
        (["agent=swe_harness"], "agent=swe_harness needs harness=NAME"),
    ],
)
def test_a_harness_and_its_agent_go_together(overrides: list[str], problem: str) -> None:
    with pytest.raises(BadSettings, match=problem):
        settings(Evaluation, "swebench_evaluate", "model=tiny", *overrides)
