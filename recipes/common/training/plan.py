"""What a run would do, and all that it lacks, without starting anything."""

import importlib.util
import shlex
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from prorl_service.errors import ProRLError
from prorl_service.schemas import Task
from recipes.common import checks
from recipes.common.checks import SLURM
from recipes.common.settings import Run, Training
from recipes.common.training import launch, memory, serving

URL = "http://127.0.0.1:PORT"


def text(settings: Run, missing: Sequence[str]) -> str:
    """Returns the trainer's configuration, the service's command, and what is missing."""
    parts = [*_trainer(settings), *_service(settings), *_machine(settings)]
    parts.append("# Missing" if missing else "# Nothing is missing")
    return "\n".join([*parts, *missing])


def _trainer(settings: Run) -> Iterator[str]:
    if not isinstance(settings, Training):
        return
    yield f"# {settings.trainer.name}"
    yield OmegaConf.to_yaml(OmegaConf.create(_configuration(settings)), resolve=True)


def _configuration(settings: Training, url: str = URL) -> Any:
    if settings.trainer.name != "verl" or importlib.util.find_spec("prorl_verl") is None:
        return settings.arguments()
    from recipes.common.training import verl

    run, model = settings.output / "run", Path(settings.model.path or "MODEL")
    url = settings.service.url or url
    return verl.configuration(settings, run / "tasks.parquet", model, url, run)


def _service(settings: Run) -> Iterator[str]:
    yield "# Service"
    if settings.service.url is not None:
        ignored = "; service.options are ignored" if settings.service.options else ""
        yield f"{settings.service.url}, which runs already{ignored}\n"
        return
    if settings.cluster.name == SLURM:
        yield "that of recipes/slurm, which sets PRORL_URL: not checked here\n"
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
    if checks.is_before_job(settings):
        yield "GPUs are not checked here: they are the job's"
    path = settings.model.path
    if path is not None and not checks.is_local(path):
        yield f"{path} is no directory here: it will be fetched from the hub"
    yield from memory.lines(settings)
    yield ""


def missing(settings: Run, tasks_of: Callable[[Run], Sequence[Task]]) -> list[str]:
    """Returns each failed check of the start, with what to do. `tasks_of`: reads the data."""
    brought = isinstance(settings, Training) and settings.trainer.brings_engines
    is_local = settings.model.path is not None and checks.is_local(settings.model.path)

    def check_tasks() -> None:
        tasks = tasks_of(settings)
        checks.check_images(settings, tasks)
        if isinstance(settings, Training) and is_local and not _failure(check_model):
            checks.fitting(settings, tasks, checks.model_directory(settings.model))

    def check_model() -> None:
        if is_local:
            checks.model_directory(settings.model)

    of_training = (checks.check_trainer, checks.check_nodes, checks.check_gpus, _check_arguments)
    wanted: list[Callable[[], object]] = [
        *(partial(check, settings) for check in of_training if isinstance(settings, Training)),
        lambda: checks.check_engines(settings, brought=brought),
        *([] if settings.cluster.name == SLURM else [lambda: checks.check_sandbox(settings)]),
        lambda: checks.check_service(settings, brought=brought),
        lambda: serving.check_options(settings),
        lambda: launch.check_processes(settings),
        lambda: launch.check_output(settings),
        check_model,
        check_tasks,
    ]
    return list(filter(None, map(_failure, wanted)))


def _failure(check: Callable[[], object]) -> str:
    try:
        check()
    except ProRLError as error:
        return f"- {error.message}" + (
            "" if error.hint in error.message else f"\n  to do: {error.hint}"
        )
    return ""


def _check_arguments(settings: Training) -> None:
    """Has the trainer check its arguments, if it is installed. Raises `ProRLError`."""
    if settings.trainer.name == "verl" and importlib.util.find_spec("verl") is not None:
        from recipes.common.training import verl

        verl.check(_configuration(settings, url="http://127.0.0.1:8080"))
    if settings.trainer.name == "trl" and importlib.util.find_spec("trl") is not None:
        from recipes.common.training import trl

        trl.check(settings)
    if settings.trainer.name == "tinker" and importlib.util.find_spec("tinker") is not None:
        from recipes.common.training import tinker

        tinker.check(settings)
