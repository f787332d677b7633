"""What every command of a recipe does around its work: records, and errors that can be read."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from prorl_service.cli.errors import one_line_errors
from recipes.common import versions


@contextmanager
def known_errors() -> Iterator[None]:
    """As one line, with what to do; others stay tracebacks."""
    try:
        with one_line_errors():
            yield
    except typer.Exit as ended:
        raise SystemExit(ended.exit_code) from None  # which Hydra lets through


def begin(config: DictConfig) -> Path:
    """The run's own directory, in which are the resolved configuration and versions by now."""
    run = Path(HydraConfig.get().runtime.output_dir)
    if not is_main_process():
        return run
    (run / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    note(run, **versions.versions())
    return run


def is_main_process() -> bool:
    """Of those that `accelerate launch` or `torchrun` start."""
    return os.environ.get("RANK", "0") == "0"


def note(run: Path, **facts: Any) -> None:
    """Adds to versions.json."""
    path = run / "versions.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | facts, indent=2) + "\n")
