"""`python -m recipes.swebench.train model=tiny trainer=verl`: VeRL's stock command, on real bugs.

Runs in the environment of `scripts/test-verl`.
"""

import json
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from prorl_verl.checks import check_configuration
from prorl_verl.settings import plain, settings_of
from recipes.common.settings import Training
from recipes.common.training import verl
from tests.recipes.commands import progress, running
from tests.recipes.composed_settings import MODELS, TASKS, settings
from tests.recipes.swebench.instances import QUICK, rows_of_tiny
from tests.verl.training import worker_command

pytestmark = pytest.mark.timeout(1800)

TRAIN = "recipes.swebench.train"
EXACT = 1e-5
"""Largest difference of a probability between engine and trainer, in fp32."""


VERL_CONFIG = Path(str(distribution("verl").locate_file("verl/trainer/config")))
ADDED = (
    "actor_rollout_ref.model.override_config.",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.",
    "ray_kwargs.ray_init.",
)
"""Sections in which VeRL accepts keys that its configuration does not name."""
RAY = "cluster.arguments.verl.ray_kwargs.ray_init"


def composed(config: str, directory: Path) -> DictConfig:
    with initialize_config_dir(str(directory), version_base=None):
        name = ["actor_rollout_ref.rollout.name=vllm"] if config == "prorl_ppo_trainer" else []
        return compose(config, [f"hydra.searchpath=[file://{VERL_CONFIG}]", *name])


def keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Yields the dotted keys of leaves."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from keys(value, f"{prefix}{key}.")
    else:
        yield prefix.removesuffix(".")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "recipe", [["swebench_train"], *(["math_code_train", f"task={task}"] for task in TASKS)]
)
@pytest.mark.sampled(5)
def test_verl_knows_every_key_that_is_set(recipe: list[str], model: str, tmp_path: Path) -> None:
    """The plug-in's own checks pass as well, apart from those of the service."""
    chosen = settings(Training, *recipe, f"model={model}", "trainer=verl")
    config = verl.configuration(chosen, tmp_path / "rows", tmp_path, "http://localhost", tmp_path)
    (tmp_path / "verl.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    stock, ours = composed("prorl_ppo_trainer", tmp_path), composed("verl", tmp_path)
    known = set(keys(OmegaConf.to_container(stock)))
    own = {key: value for key, value in config.items() if key not in ("defaults", "hydra")}
    plain_own = OmegaConf.to_container(OmegaConf.create(own))
    unknown = {key for key in keys(plain_own) if key not in known and not key.startswith(ADDED)}
    assert not unknown
    sections = plain(ours)
    check_configuration(sections, settings_of(sections))


def test_the_papers_settings_reach_verl(tmp_path: Path) -> None:
    chosen = settings(Training, "swebench_train", "model=qwen3_8b", "trainer=verl")
    config = OmegaConf.create(
        verl.configuration(chosen, tmp_path, tmp_path, "http://localhost", tmp_path)
    )
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (config.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n) == (32, 8, 8)
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c) == (0.2, 0.28, 10.0)
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.optim.lr) == (True, 1e-4, 1e-6)
    assert (rollout.temperature, rollout.top_p, rollout.max_model_len) == (1.0, 1.0, 32768)
    assert (config.prorl.thinking, config.prorl.limits.max_turns) == (True, 30)
    assert config.algorithm.filter_groups.enable
    assert config.trainer.nnodes * config.trainer.n_gpus_per_node == 8
    assert config.trainer.total_training_steps == 66


def test_a_remote_service_gets_a_local_model_as_a_directory(tmp_path: Path) -> None:
    chosen = settings(
        Training, "swebench_train", "model=tiny", "trainer=verl", "service.url=http://elsewhere"
    )
    config = verl.configuration(chosen, tmp_path, tmp_path, "http://elsewhere", tmp_path)
    assert config["prorl"]["tokenizer"] == str(tmp_path)


@pytest.mark.on_demand
def test_training_continues_after_a_kill(tmp_path: Path) -> None:
    output, rows = tmp_path / "output", rows_of_tiny(tmp_path)
    tracker = output / "checkpoints/latest_checkpointed_iteration.txt"
    with TemporaryDirectory(prefix="ray-") as ray_directory:  # its sockets' paths must be short
        overrides = [
            *("model=tiny", "trainer=verl", "steps=3", f"data.rows={rows}", f"output={output}"),
            *QUICK,
            "algorithm.prompts_per_update=1",  # two updates for each step's rollouts
            f"+{RAY}._temp_dir={ray_directory}",
            f"+{RAY}.runtime_env.py_executable={worker_command()}",
        ]
        with running(TRAIN, tmp_path / "first.log", *overrides) as command:
            command.wait_until(tracker.exists)
            command.kill()
            assert command.survivors() == []
        reached = int(tracker.read_text())  # workers may end a step before they notice the kill
        with running(TRAIN, tmp_path / "second.log", *overrides) as command:
            assert command.wait() == 0, command.said
            assert command.survivors() == []

    steps = progress(output)
    assert [one["step"] for one in steps][-1:] == [3], command.said
    assert f"setting global step to {reached}" in (tmp_path / "second.log").read_text()
    assert all(0 < one["trained_on"] < 1 for one in steps)
    assert all(0 < one["resolved_rate"] < 1 for one in steps)
    assert all(one["prorl/reward/resolved"] == one["trained_on"] for one in steps)
    assert tracker.read_text() == "3"
    _, second = sorted((output / "runs").iterdir())
    # Only the first step: later ones also train on rollouts begun before the last update.
    metrics, *_ = map(json.loads, (second / "metrics.jsonl").read_text().splitlines())
    assert metrics["data"]["actor/grad_norm"] > 0
    assert metrics["data"]["training/rollout_probs_diff_max"] < EXACT
