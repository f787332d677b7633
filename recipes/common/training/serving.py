"""The rollout service of a run: a configured one, or one that ends with the run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cyclopts import CycloptsError
from pydantic import ValidationError

from prorl_service import local
from prorl_service.cli.main import app
from prorl_service.errors import problems_of
from recipes.common.settings import BadSettings, Run


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
    print(f"results in {settings.output}", flush=True)
    if "--journal" not in settings.service.options:
        print(
            f"its rollouts: prorl serve --journal {_journal(settings)} --resume, then prorl open",
            flush=True,
        )


def check_options(settings: Run) -> None:
    """Raises `BadSettings` for `service.options` that `prorl serve` does not take."""
    try:
        command = ["serve", *settings.service.options]
        app.parse_args(command, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        cause = error.__cause__
        said = problems_of(cause) if isinstance(cause, ValidationError) else str(error)
        hint = "`prorl serve --help` lists the options"
        raise BadSettings(f"service.options: {said}", hint=hint) from error


def options(settings: Run) -> list[str]:
    """Returns options of `prorl serve`."""
    sandbox = settings.sandbox
    return [
        *("--sandbox", sandbox.kind),
        *("--init-workers", str(sandbox.init_workers)),
        *("--run-workers", str(sandbox.run_workers)),
        *("--eval-workers", str(sandbox.eval_workers)),
        *("--journal", str(_journal(settings)), "--resume"),
    ]


def _journal(settings: Run) -> Path:
    """Returns the file of all starts of a run: each continues it, as the trainer continues from
    its checkpoint. The service goes on counting policy versions."""
    return settings.output / "journal.sqlite"
