"""`prorl images`: fills, shows and empties the image cache. All work is `sandbox.images`."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from prorl_service.cli.errors import one_line_errors
from prorl_service.errors import InvalidRequest
from prorl_service.sandbox.images import Entry, ImageCache, Pulled, definitions, references
from prorl_service.sandbox.images.definitions import Definition

images = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Images of sandboxes: pull, build, list, prune.",
)

Root = Annotated[
    Path | None, typer.Option("--cache", help="The cache; default: images in $PRORL_CACHE.")
]
Budget = Annotated[
    float | None, typer.Option("--budget", min=0, help="Most that finished images may take, GB.")
]


@images.command(epilog=references.__doc__.split("\n\n", 1)[1] if references.__doc__ else "")
def pull(
    reference: Annotated[list[str], typer.Argument(help="Images; '-' reads them from stdin.")],
    *,
    parallel: Annotated[int, typer.Option(min=1, help="How many at once.")] = 4,
    budget: Budget = None,
    cache: Root = None,
) -> None:
    """Make images ready ahead of their use, and notice tags that have moved."""
    with one_line_errors():
        wanted = _from_stdin(reference)
        image_cache = ImageCache(cache, budget_bytes=_bytes(budget))
        with pull_progress(len(wanted)) as show:
            pulled = asyncio.run(image_cache.prefetch(wanted, parallel=parallel, on_progress=show))
    failed = [one for one in pulled if one.error is not None]
    for one in failed:
        assert one.error is not None
        hint = f" ({one.error.hint})" if one.error.hint else ""
        typer.echo(f"prorl: {one.reference}: {one.error}{hint}", err=True)
    if failed:
        raise typer.Exit(2)


@images.command()
def build(
    name: Annotated[str, typer.Argument(help="The image is used as local:NAME.")],
    source: Annotated[
        str | None,
        typer.Argument(help="A definition, a Dockerfile, a directory, or any reference."),
    ] = None,
    *,
    debian: Annotated[str | None, typer.Option(help="A Debian suite instead of a source.")] = None,
    include: Annotated[str, typer.Option(help="Debian packages, separated by commas.")] = "",
    mirror: Annotated[
        str | None, typer.Option(help="URL of a Debian mirror; default: where apt looks.")
    ] = None,
    budget: Budget = None,
    cache: Root = None,
) -> None:
    """Make an image of one's own."""
    with one_line_errors():
        if (source is None) == (debian is None):
            raise InvalidRequest.of_field("source", "give either a source or --debian")
        if debian is not None:
            packages = tuple(word.strip() for word in include.split(",") if word.strip())
            definition: Definition | str = definitions.of_debian(
                debian, include=packages, mirror=mirror
            )
        else:
            definition = _definition(source or "")
        made = asyncio.run(ImageCache(cache, budget_bytes=_bytes(budget)).build(name, definition))
    typer.echo(f"local:{name}  {decimal(made.size_bytes)}  {made.path}")


@images.command("list")
def list_(*, cache: Root = None) -> None:
    """Show what the cache has, least recently used first."""
    with one_line_errors():
        entries = asyncio.run(ImageCache(cache).entries())
    _show(entries)


@images.command()
def prune(
    *,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Down to so many GB; keeps what was built here.")
    ] = None,
    older_than: Annotated[
        float | None, typer.Option(min=0, help="What was not used for so many days.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that nobody uses.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    cache: Root = None,
) -> None:
    """Remove images that nobody uses, and what crashed processes have left."""
    with one_line_errors():
        removed = asyncio.run(
            ImageCache(cache).prune(
                budget_bytes=_bytes(budget),
                unused_s=None if older_than is None else older_than * 86400,
                everything=everything,
                dry_run=dry_run,
            )
        )
    _show(removed)
    verb = "would remove" if dry_run else "removed"
    typer.echo(f"{verb} {len(removed)}: {decimal(sum(entry.size_bytes for entry in removed))}")


def _from_stdin(given: list[str]) -> list[str]:
    if given == ["-"]:
        given = typer.get_text_stream("stdin").read().split()
    for reference in given:
        references.parse(reference)
    return given


def _definition(source: str) -> Definition | str:
    path = Path(source)
    if path.is_file() and (path.suffix == ".def" or definitions.is_dockerfile(path)):
        return definitions.of_file(path)
    return str(path.absolute()) if path.is_dir() else source


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else int(gigabytes * 1e9)


def _show(entries: list[Entry]) -> None:
    if not entries:
        return
    table = Table("size", "last use", "in use", "names", "source", box=None)
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used_at))
        names = "\n".join(entry.names) or entry.digest[:19]
        table.add_row(
            decimal(entry.size_bytes), used, "yes" if entry.in_use else "", names, entry.source
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=1000)  # one line for each, whatever reads it
    console.print(table)


@contextmanager
def pull_progress(total: int) -> Iterator[Callable[[Pulled], None]]:
    """A live display on a terminal, else a line for each image that is done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as display:
        overall = display.add_task(f"0/{total} images", total=total)
        yield _Display(display, overall, total).show


def _line(pulled: Pulled) -> None:
    if pulled.state in ("done", "failed"):
        size = "" if pulled.size_bytes is None else f" {decimal(pulled.size_bytes)}"
        typer.echo(f"{pulled.state} {pulled.reference}{size} in {pulled.seconds:.1f} s", err=True)


class _Display:
    """One line for each image at work; those that are done move above as plain lines."""

    def __init__(self, display: Progress, overall: TaskID, total: int) -> None:
        self._display = display
        self._overall = overall
        self._total = total
        self._done = 0
        self._working: dict[str, TaskID] = {}

    def show(self, pulled: Pulled) -> None:
        if pulled.state == "working":
            task = self._display.add_task(pulled.reference, total=None)
            self._working[pulled.reference] = task
        elif pulled.state in ("done", "failed"):
            self._display.remove_task(self._working.pop(pulled.reference))
            self._done += 1
            self._display.update(
                self._overall,
                advance=1,
                description=f"{self._done}/{self._total} images",
            )
            _line(pulled)
