"""The rollout service of a run: a configured one, or one that ends with the run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prorl_service import local
from recipes.common.settings import Run


@contextmanager
def service(settings: Run, model: Path, *, brought: bool) -> Iterator[str]:
    """Yields the service's URL. `brought`: the trainer brings its engines. Raises `ProRLError`."""
    if settings.service.url is not None:
        yield settings.service.url
        return
    with ExitStack() as stack:
        engines = list(settings.engines)
        if not brought and not engines:  # a tiny model: see `checks.check_engines`
            of_engine = ["--max-model-len", str(settings.agent.context)]
            log = settings.output / "engine.log"
            engines = [stack.enter_context(local.engine(model, log=log, options=of_engine)).url]
        log = settings.output / "service.log"
        of_service = [*options(settings), *settings.service.options]
        started = stack.enter_context(
            local.service([] if brought else engines, log=log, options=of_service)
        )
        print(f"service {started.url}, log {log}", flush=True)
        yield started.url


def options(settings: Run) -> list[str]:
    """Returns options of `prorl serve`."""
    sandbox = settings.sandbox
    return [
        *("--sandbox", sandbox.kind),
        *("--init-workers", str(sandbox.init_workers)),
        *("--run-workers", str(sandbox.run_workers)),
        *("--eval-workers", str(sandbox.eval_workers)),
    ]
