"""What a run would do, and all that it lacks, without starting anything."""

import importlib.util
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from prorl_service.errors import ProRLError
from recipes.common import checks
from recipes.common.settings import Run, Training
from recipes.common.training import launch, memory, serving

URL = "http://127.0.0.1:PORT"


def text(settings: Run) -> str:
    """Returns the trainer's configuration, the service's command, and what is missing."""
    parts = [*_trainer(settings), *_service(settings), *_machine(settings)]
    missing = list(_missing(settings))
    parts.append("# Missing" if missing else "# Nothing is missing")
    return "\n".join([*parts, *missing])


def _trainer(settings: Run) -> Iterator[str]:
    if not isinstance(settings, Training):
        return
    yield f"# {settings.trainer.name}"
    yield OmegaConf.to_yaml(OmegaConf.create(_configuration(settings)), resolve=True)


def _configuration(settings: Training) -> Any:
    if settings.trainer.name == "trl" or importlib.util.find_spec("prorl_verl") is None:
        return settings.arguments()
    from recipes.common.training import verl

    run, model = settings.output / "run", Path(settings.model.path or "MODEL")
    return verl.configuration(settings, run / "tasks.parquet", model, URL, run)


def _service(settings: Run) -> Iterator[str]:
    yield "# Service"
    if settings.service.url is not None:
        yield f"{settings.service.url}, which runs already\n"
        return
    engines = [part for url in settings.engines for part in ("--backend", url)]
    options = [*engines, *serving.options(settings), *settings.service.options]
    yield shlex.join(["prorl", "serve", *options]) + "\n"


def _machine(settings: Run) -> Iterator[str]:
    cluster = settings.cluster
    if not isinstance(settings, Training):
        return
    yield "# Machine"
    gpus = f"{cluster.gpus_per_node} GPUs each" if cluster.gpus_per_node else "no GPU"
    yield f"{cluster.nodes} x {cluster.name}, {gpus}"
    yield from memory.lines(settings)
    yield ""


def _missing(settings: Run) -> Iterator[str]:
    """Yields each failed check, with what to do."""
    brought = isinstance(settings, Training) and settings.trainer.name == "verl"
    wanted: list[Callable[[], object]] = [
        lambda: checks.check_engines(settings, brought=brought),
        lambda: checks.check_sandbox(settings),
        lambda: checks.check_service(settings, brought=brought),
        lambda: launch.check_processes(settings),
        lambda: launch.check_output(settings),
    ]
    if isinstance(settings, Training):
        wanted.insert(0, lambda: checks.check_trainer(settings))
    for check in wanted:
        try:
            check()
        except ProRLError as error:
            yield f"- {error.message}" + (f"\n  to do: {error.hint}" if error.hint else "")
    if not settings.data.rows.exists():
        yield f"- {settings.data.rows} is not there\n  to do: {settings.data.make}"
    path = settings.model.path
    if path is not None and not Path(path).expanduser().is_dir():
        yield f"- {path} is no directory here: it will be fetched from the hub"
