"""Output that each preparation of a data set leaves in its directory (rows.jsonl, rejected.jsonl,
manifest.json), and the options that all preparations share. Reads and converts nothing."""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from pydantic import BaseModel
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from prorl_service.errors import InvalidRequest
from prorl_service.utils.files import write_whole

ROWS, REJECTED, MANIFEST = "rows.jsonl", "rejected.jsonl", "manifest.json"
PACKAGES = ("prorl-service", "datasets", "pydantic")


Output = Annotated[Path, Parameter(help="Directory for rows and manifest.")]
From = Annotated[
    Path | None, Parameter("--from", help="Its files on this machine; default: the hub's.")
]
Split = Annotated[str | None, Parameter(help="Default: the data set's usual one.")]
Revision = Annotated[str | None, Parameter(help="Revision on the hub; default: newest.")]


class Rejected(BaseModel):
    """A row that is not used. `reason` is for counts; `detail` is the full explanation."""

    instance: str
    reason: str
    detail: str


class PreparedManifest(BaseModel):
    """Record of a preparation. `revision` is the hub's commit, or a digest of the files."""

    dataset: str
    source: str
    revision: str
    split: str
    rows_read: int
    rejected: dict[str, int]
    versions: dict[str, str]


def counts(rejected: Iterable[Rejected]) -> dict[str, int]:
    """Counts rows by reason, most frequent first."""
    return dict(Counter(one.reason for one in rejected).most_common())


def nothing_usable(rejected: Sequence[Rejected]) -> InvalidRequest:
    said = "; ".join(f"{count} with: {reason}" for reason, count in counts(rejected).items())
    first = f". The first: {rejected[0].detail}" if rejected else ""
    problem = f"no row can be used: {said or 'there are no rows'}{first}"
    return InvalidRequest.of_field("dataset", problem)


def check_directory(directory: Path, dataset: str) -> None:
    """Raises `InvalidRequest` if the directory holds another data set."""
    manifest = directory / MANIFEST
    if not manifest.exists():
        return
    there = PreparedManifest.model_validate_json(manifest.read_text()).dataset
    if there != dataset:
        raise InvalidRequest.of_field(
            "output", f"{directory} holds {there}", hint="give each data set its own directory"
        )


def check_offline(dataset: str, path: Path | None, split: str | None, revision: str | None) -> None:
    """Raises `InvalidRequest` for an option that says where the data set is: this one is here."""
    for option, value in {"from": path, "split": split, "revision": revision}.items():
        if value is not None:
            problem = f"{dataset} comes with this repository and cannot be read from elsewhere"
            raise InvalidRequest.of_field(option, problem, hint=f"leave --{option} out")


def versions(*more: str) -> dict[str, str]:
    """Returns versions. `more`: packages in addition to those that all preparations use."""
    packages = {name: version(name) for name in (*PACKAGES, *more)}
    return {"python": platform.python_version(), **packages}


def write_lines(path: Path, models: Iterable[BaseModel]) -> None:
    write_whole(path, "".join(f"{model.model_dump_json()}\n" for model in models))


def write_manifest(directory: Path, manifest: PreparedManifest) -> None:
    write_whole(directory / MANIFEST, manifest.model_dump_json(indent=2) + "\n")


@contextmanager
def progress(what: str, total: int | None, console: Console) -> Iterator[Callable[[], None]]:
    with Progress(console=console, disable=not console.is_terminal) as display:
        task = display.add_task(what, total=total)
        yield lambda: display.advance(task)


def summary(manifest: PreparedManifest, usable: str, count: int) -> Table:
    """Makes a table of a manifest. `usable`: what usable rows are called."""
    table = Table("", manifest.dataset, box=None)
    table.add_row("source", f"{manifest.source}, {manifest.split}, {manifest.revision}")
    table.add_row("rows read", str(manifest.rows_read))
    table.add_row(usable, str(count))
    for reason, rows in manifest.rejected.items():
        table.add_row(f"rejected: {rows}", reason)
    return table
