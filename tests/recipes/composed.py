"""Settings as a command line would give them, without the command."""

from typing import TypeVar

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from recipes.common.settings import Run, settings_of
from tests.verl.training import ROOT

S = TypeVar("S", bound=Run)

EXPERIMENTS = [
    (model, trainer)
    for model in ("qwen3_4b", "qwen3_8b", "qwen3_14b", "tiny")
    for trainer in ("trl", "verl")
]
TASKS = ("math", "code", "stem")


def resolved(config: str, *overrides: str) -> DictConfig:
    """What `--cfg job --resolve` shows."""
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        made = compose(config, list(overrides))
    OmegaConf.resolve(made)
    return made


def settings(kind: type[S], config: str, *overrides: str) -> S:
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return settings_of(kind, compose(config, list(overrides)))
