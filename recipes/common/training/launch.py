"""One run: checks, the model, the service, then the stock trainer or an evaluation.

Recipes supply the tasks, and make the model if it has no path. Independent of the tasks' kind.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prorl_service.schemas import Task
from recipes.common import checks, versions
from recipes.common.records import is_main_process, note
from recipes.common.settings import BadSettings, Evaluation, Run, Training
from recipes.common.training import serving


def train(
    settings: Training, run: Path, tasks: Sequence[Task], make_model: Callable[[], Path]
) -> None:
    """Trains. `run`: see `records.begin`. Raises `ProRLError`, before work starts if possible."""
    brought = settings.trainer.brings_engines
    checks.check_trainer(settings)
    checks.check_nodes(settings)
    checks.check_gpus(settings)
    checks.check_engines(settings, brought=brought)
    checks.check_sandbox(settings)
    checks.check_images(settings, tasks)
    checks.check_service(settings, brought=brought)
    serving.check_options(settings)
    check_processes(settings)
    check_output(settings)
    model = model_of(settings, make_model)
    kept = checks.fitting(settings, tasks, model)
    if is_main_process():
        print(f"{len(kept)} of {len(tasks)} tasks, results in {settings.output}", flush=True)
        note(run, model=versions.model(model, settings.model.path, settings.model.revision))
    with serving.service(settings, model, brought=brought) as url:
        if settings.trainer.name == "verl":
            from recipes.common.training import verl

            verl.train(settings, kept, model, url, run)
        elif settings.trainer.name == "tinker":
            from recipes.common.training import tinker

            tinker.train(settings, kept, model, url)
        else:
            from recipes.common.training import trl

            trl.train(settings, kept, model, url)


def model_of(settings: Run, make_model: Callable[[], Path]) -> Path:
    """Returns the model's directory. Raises `ProRLError`."""
    if settings.model.path is None:
        return make_model()
    return checks.model_directory(settings.model)


@contextmanager
def evaluating(
    settings: Evaluation, tasks: Sequence[Task], make_model: Callable[[], Path]
) -> Iterator[str]:
    """Yields the URL of a service. Raises `ProRLError`, before work starts if possible."""
    checks.check_engines(settings, brought=False)
    checks.check_sandbox(settings)
    checks.check_images(settings, tasks)
    checks.check_service(settings, brought=False)
    serving.check_options(settings)
    starts_engine = settings.model.engine == "reference" and not settings.service.url
    model = model_of(settings, make_model) if starts_engine else Path()
    with serving.service(settings, model, brought=False) as url:
        yield url


def check_processes(settings: Run) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and settings.service.url is None:
        raise BadSettings(
            "each of several processes would start a service of its own",
            hint="start one service (prorl serve --backend URL) and set service.url=URL",
        )


def check_output(settings: Run) -> None:
    checkpoints = settings.output / "checkpoints"
    if settings.resume == "never" and checkpoints.exists() and any(checkpoints.iterdir()):
        raise BadSettings(
            f"{checkpoints} has checkpoints of another run, and resume=never",
            hint="set resume=auto to continue from the newest, or output=DIRECTORY to start afresh",
        )
