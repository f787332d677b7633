"""Task directories that `prorl harbor` gets: those that can be read, and the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prorl_service.agents.harbor.directory.checks import oracle
from prorl_service.agents.harbor.directory.reading import TaskDirectory
from prorl_service.cli.harbor_runs import HarborCandidate
from prorl_service.cli.program import say
from prorl_service.errors import InvalidRequest, ProRLError, TaskError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    env: Annotated[tuple[str, ...], Parameter(metavar="NAME=VALUE")] = ()
    """Variable of the host that tasks name."""
    strict: Annotated[bool, Parameter(negative="")] = False
    """Stop at the first directory that cannot be read."""
    build: Annotated[bool, Parameter(negative="")] = False
    """Build Dockerfiles although tasks name images."""


def read_all(
    directories: Sequence[Path],
    env: Sequence[str] = (),
    *,
    strict: bool,
    builds: bool = False,
    with_probes: bool = False,
) -> tuple[list[HarborCandidate], dict[Path, str]]:
    """Reads task directories, and those in directories of them; `with_probes`, their solutions,
    too. `builds`: Dockerfiles come before images that tasks name. Returns also why directories are
    refused: file, key and problem.

    Raises `ProRLError`: if there is no task, and if `strict` for the first that cannot be read.
    """
    if not directories:
        raise InvalidRequest.of_field("directories", "name at least one task directory")
    variables = dict(_variable(one) for one in env)
    found: dict[str, HarborCandidate] = {}
    refused: dict[Path, str] = {}
    for path in [path for one in directories for path in _task_paths(one)]:
        try:
            one = _read(path, variables, found, builds=builds, with_probes=with_probes)
        except TaskError as error:
            if strict:
                raise
            refused[path] = error.message.removeprefix(f"{path}/")
            last = error
        else:
            found[one.directory.name] = one
            if unknown := one.directory.unknown_keys():
                say(f"{path}/task.toml: left out, as by Harbor: {', '.join(unknown)}")
    if not found and len(refused) == 1:
        raise last
    return list(found.values()), refused


def _read(
    path: Path,
    variables: Mapping[str, str],
    others: Mapping[str, HarborCandidate],
    *,
    builds: bool,
    with_probes: bool,
) -> HarborCandidate:
    """Raises `TaskError`."""
    try:
        directory = TaskDirectory.read(path, variables, builds=builds)
        if (other := others.get(directory.name)) is not None:
            raise TaskError(
                f"{path}: its name {directory.name!r} is that of {other.directory.path}"
            )
        if with_probes:
            oracle(directory)
        return HarborCandidate(directory, directory.task())
    except (OSError, ValueError) as error:  # a file that cannot be read, or is not UTF-8
        raise TaskError(f"{path}: {error}") from error


def _task_paths(directory: Path) -> Iterator[Path]:
    if (directory / "task.toml").exists():
        yield directory
        return
    inner = sorted(one.parent for one in directory.glob("*/task.toml"))
    if not inner:
        raise ProRLError(f"{directory} has no task.toml, nor has a directory in it")
    yield from inner


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidRequest.of_field("--env", f"{text!r}: write it as NAME=VALUE")
    return name, value
