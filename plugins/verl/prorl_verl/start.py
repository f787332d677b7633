"""Hydra callback that ends a run that cannot work with one clear error, before Ray starts."""

import sys
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from prorl_service.errors import ProRLError
from prorl_service.schemas.suggestions import nearest_fields
from prorl_verl import checks, contract
from prorl_verl.settings import Settings, plain, settings_of


class CheckBeforeStart(Callback):  # type: ignore[misc]
    def on_job_start(self, config: Any, **_: Any) -> None:
        """Raises `SystemExit`: Hydra continues after any other exception."""
        try:
            sections, settings = configured(config)
            checks.check_service(sections, settings)
            for ignored in checks.ignored(sections):
                sys.stderr.write(f"prorl: warning: {ignored}\n")
            sys.stderr.write(f"prorl: watch the rollouts at {settings.url}\n")
        except ProRLError as error:
            is_said = error.hint in error.message  # as in the message of a failed call
            _fail(error.message if is_said else f"{error.message}\n  {error.hint}")
        except (OSError, ValueError, OmegaConfBaseException) as error:
            _fail(str(error))


def configured(config: Any) -> tuple[dict[str, Any], Settings]:
    """Returns the sections of VeRL's configuration and the settings in them, checked. Asks no
    service. Raises `ProRLError`."""
    contract.check()
    sections = plain(config)
    try:
        settings = settings_of(sections)
    except ValidationError as error:
        problems = [*map(_described, error.errors()), nearest_fields(error.errors(), Settings)]
        raise checks.BadConfiguration("; ".join(filter(None, problems))) from error
    checks.check_configuration(sections, settings)
    return sections, settings


def _described(problem: Any) -> str:
    name = ".".join(["prorl", *map(str, problem["loc"])])
    if problem["type"] == "extra_forbidden":
        return f"there is no option {name}"
    return f"{name}={problem['input']!r}: {problem['msg']}"


def _fail(message: str) -> None:
    sys.stderr.write(f"prorl: {message}\n")
    raise SystemExit(1)
