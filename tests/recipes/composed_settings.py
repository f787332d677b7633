"""Settings as a command line would compose them, without running a command."""

from typing import TypeVar

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from recipes.common.settings import Run, settings_of
from tests.verl.training import ROOT

S = TypeVar("S", bound=Run)

MODELS = ("qwen3_4b", "qwen3_8b", "qwen3_14b", "tiny")
SMALL = ("tiny", "smollm2")
"""Models for machines without a GPU; the second is for problems only."""
TRAINERS = ("trl", "verl", "tinker")
TASKS = ("math", "code", "stem", "reasoning_gym")
"""Tasks of the math and code recipe; SWE has its own recipe."""


def unresolved(config: str, *overrides: str) -> DictConfig:
    """Raises `HydraException` for names that do not exist."""
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return compose(config, list(overrides))


def resolved(config: str, *overrides: str) -> DictConfig:
    """Returns what `--cfg job --resolve` shows."""
    made = unresolved(config, *overrides)
    OmegaConf.resolve(made)
    return made


def settings(kind: type[S], config: str, *overrides: str) -> S:
    return settings_of(kind, unresolved(config, *overrides))
