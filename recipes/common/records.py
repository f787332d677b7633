"""Records that every command of a recipe leaves of its run."""

import json
import os
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from recipes.common import versions


def begin(config: DictConfig) -> Path:
    """Writes the resolved configuration and the versions to the run's directory; returns it."""
    run = Path(HydraConfig.get().runtime.output_dir)
    if not is_main_process():
        return run
    (run / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    note(run, **versions.versions())
    return run


def is_main_process() -> bool:
    """Returns whether this is the main process of those of `accelerate launch` or `torchrun`."""
    return os.environ.get("RANK", "0") == "0"


def note(run: Path, **facts: Any) -> None:
    """Adds to versions.json."""
    path = run / "versions.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | facts, indent=2) + "\n")
