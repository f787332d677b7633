"""The commands of recipes: Hydra's composition with one-line errors, `--help`, and `--dry-run`.

A command is a function of its checked settings, and has a function that makes the tasks. Nothing
here knows a recipe.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import hydra
import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf

from prorl_service.cli.program import one_line_errors
from prorl_service.schemas import Task
from recipes.common.settings import BadSettings, Run, settings_of
from recipes.common.training import plan

CONFIGS = Path(__file__).parents[2] / "configs"
HELP = ("--help", "-h")
DRY_RUN = "--dry-run"
NO_SUCH_KEY = re.compile(r"Could not (?:override|delete from config\.) '([^']+)'")
NOT_CHOSEN = re.compile(r"You must specify '([^']+)'")
S = TypeVar("S", bound=Run)


def command(
    kind: type[S], config_name: str, tasks_of: Callable[[Run], Sequence[Task]], *examples: str
) -> Callable[[Callable[[S, DictConfig], None]], Callable[[], None]]:
    """Makes a program of `work(settings, config)`. `tasks_of`: reads the data, and raises
    `BadSettings` if it cannot. `examples`: arguments that `--help` shows."""

    def decorate(work: Callable[[S, DictConfig], None]) -> Callable[[], None]:
        @wraps(work)
        def composed(config: DictConfig) -> None:
            with one_line_errors():
                work(settings_of(kind, config), config)

        @wraps(work)
        def main() -> None:
            arguments = sys.argv[1:]
            with one_line_errors():
                if set(HELP) & set(arguments):
                    print(help_text(config_name, examples))
                    return
                given = [one for one in arguments if one != DRY_RUN]
                of_hydra, unknown = get_args_parser().parse_known_args(given)
                if unknown:
                    raise _no_options(unknown)
                if not of_hydra.multirun and of_hydra.config_dir is None:
                    config = composition(config_name, of_hydra.overrides)
                    if given != arguments:
                        settings = settings_of(kind, config)
                        missing = plan.missing(settings, tasks_of)
                        print(plan.text(settings, missing))
                        sys.exit(bool(missing))
            hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name=config_name)(
                composed
            )()

        return main

    return decorate


def composition(config_name: str, overrides: Sequence[str]) -> DictConfig:
    """Composes a configuration. Raises `BadSettings` with the nearest names for all that are not
    there."""
    GlobalHydra.instance().clear()
    try:
        with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
            return _composed(config_name, list(overrides))
    finally:
        GlobalHydra.instance().clear()


def _composed(config_name: str, overrides: list[str]) -> DictConfig:
    problems, unknown = [], []
    while True:
        try:
            config = hydra.compose(config_name, overrides)
            break
        except HydraException as error:
            if (found := NO_SUCH_KEY.search(str(error))) is not None:
                unknown.append(found[1])
                rest = [one for one in overrides if _name(one) != found[1]]
            elif isinstance(error, MissingConfigException) and error.options:
                group, _, name = str(error.missing_cfg_file).rpartition("/")
                problems.append(
                    _unknown(f"{group}={name}", name, f"choices of {group}", error.options)
                )
                rest = [
                    *overrides,
                    f"{group}={error.options[0]}",
                ]  # any choice will do: others may be wrong, too
                rest.remove(next(one for one in overrides if _name(one) == group))
            else:
                raise _readable(error) from error
            overrides = rest
    known = list(keys_of(config)) if unknown else []
    problems += [_unknown(key, key, "settings", known) for key in unknown]
    if len(problems) == 1:
        raise BadSettings(problems[0][0], hint=problems[0][1])
    if problems:
        raise BadSettings("; ".join(f"{what} ({hint})" for what, hint in problems))
    return config


def _name(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].partition("@")[0]


def _readable(error: HydraException) -> BadSettings:
    text = str(error)
    if (found := NOT_CHOSEN.search(text)) is not None:
        group = found[1]
        return BadSettings(f"{group} is missing", hint=f"set {group}= to {_listed(group)}")
    return BadSettings(text.splitlines()[0], hint="settings are written NAME=VALUE; see `--help`")


def _unknown(what: str, name: str, kind: str, known: Sequence[str]) -> tuple[str, str]:
    """Returns what is not there, and what was meant."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"{kind}: {', '.join(known)}"
    return f"there is no {what}", hint if len(known) < 40 or near else "--help"


def _no_options(unknown: Sequence[str]) -> BadSettings:
    meant = []
    for one in unknown:
        name, is_setting, value = one.lstrip("-").partition("=")
        near = get_close_matches(one, [*HELP, DRY_RUN, "--cfg"], n=1, cutoff=0.5)
        meant.append(f"{name}={value}" if is_setting else near[0] if near else "--help")
    return BadSettings(
        f"there is no option {', '.join(unknown)}", hint=f"did you mean {', '.join(meant)}?"
    )


def keys_of(config: Any, prefix: str = "") -> Iterator[str]:
    """Yields the names of all settings."""
    for key in config:
        yield f"{prefix}{key}"
        value = config._get_node(key)
        if isinstance(value, DictConfig) and not OmegaConf.is_missing(config, key):
            yield from keys_of(value, f"{prefix}{key}.")


# --- help ---------------------------------------------------------------------------------------


def help_text(config_name: str, examples: Sequence[str]) -> str:
    spec = sys.modules["__main__"].__spec__
    program = "python -m " + (spec.name if spec is not None else "recipes...")
    groups = list(_groups(config_name))
    width = max(map(len, groups))
    choices = [f"  {group:{width}}  {_listed(group)}" for group in groups]
    return "\n".join(
        [
            f"usage: {program} GROUP=CHOICE... [SETTING=VALUE...] [{DRY_RUN}]",
            "",
            *choices,
            "",
            "`--cfg job` prints all settings, such as algorithm.learning_rate=1e-6.",
            f"`{DRY_RUN}` prints what would run and all that is missing, and starts nothing;",
            "  the exit status is 1 if something is missing.",
            "",
            *(f"  {program} {one}" for one in examples),
        ]
    )


def _groups(config_name: str) -> Iterator[str]:
    """Yields the groups that one chooses from."""
    defaults = yaml.safe_load((CONFIGS / f"{config_name}.yaml").read_text())["defaults"]
    for one in defaults:
        if isinstance(one, dict):
            (group,) = one
            if (CONFIGS / group).is_dir():
                yield group


def _listed(group: str) -> str:
    return ", ".join(sorted(file.stem for file in (CONFIGS / group).glob("*.yaml")))
