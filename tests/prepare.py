"""Files that many tests need and a fresh machine lacks, made outside of any test's time limit.

`python -m tests.prepare` makes everything; `tests/recipes/conftest.py` calls it for a part of the
tests. Everything stays in the service's cache, so that the next call takes seconds. Nothing is
tested here.
"""

import fcntl
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from prorl_service.sandbox.cache import cache_root
from prorl_service.sandbox.host import bundle
from recipes.common.settings import Training
from recipes.math_code import tasks as problems
from recipes.smollm import model as smollm
from recipes.swebench import offline
from recipes.swebench import tasks as bugs
from recipes.swebench.rows import write_rows
from tests.recipes.composed_settings import TASKS, settings
from tests.recipes.swebench import log_instances
from tests.tokens import templates

Progress = Callable[[str], None]
PREPARED = [task for task in TASKS if task != "reasoning_gym"]
"""Tasks whose tiny models are made; that of puzzles needs their library (`tests.puzzles`)."""


def prepare(progress: Progress) -> None:
    """Makes all files, one process at a time; raises the error of a step that fails.

    On a fresh machine this takes minutes.
    """
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / "tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _prepare(progress)


def _prepare(progress: Progress) -> None:
    steps: dict[str, Callable[[], object]] = {
        "the Python of sandboxes": bundle.directory,
        "offline instances": partial(_offline_instances, progress),
        "chat templates": templates.fetch,
        "releases of Django": log_instances.fetch_django,
        "SmolLM2": smollm.cached,
        "the tiny model of bugs": _bugs_model,
        **{f"the tiny model of {task}": partial(_problems_model, task) for task in PREPARED},
    }
    for number, (name, make) in enumerate(steps.items(), 1):
        began_at = time.monotonic()
        progress(f"preparing {number}/{len(steps)}: {name}")
        make()
        progress(f"prepared {name} in {time.monotonic() - began_at:.1f} s")


def _offline_instances(progress: Progress) -> None:
    offline.build_all(offline.default_directory(), progress=progress)


def _bugs_model() -> Path:
    with tempfile.TemporaryDirectory() as directory:
        rows = Path(directory, "rows.jsonl")
        write_rows(rows, offline.build_all(offline.default_directory(), progress=lambda _: None))
        chosen = settings(Training, "swebench_train", "model=tiny", f"data.rows={rows}")
        return bugs.tiny_model(chosen, bugs.rows_of(chosen))


def _problems_model(task: str) -> Path:
    return problems.tiny_model(settings(Training, "math_code_train", f"task={task}", "model=tiny"))


if __name__ == "__main__":
    prepare(print)
