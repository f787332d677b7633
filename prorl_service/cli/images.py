"""`prorl images`: fills, shows and empties the image cache. `sandbox.images` does the work."""

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.types import NonNegativeFloat, PositiveInt
from rich.filesize import decimal
from rich.table import Table

from prorl_service.cli.screen import Screen
from prorl_service.errors import InvalidRequest
from prorl_service.sandbox.images import (
    CachedImage,
    ImageOptions,
    ImageStore,
    Pulled,
    context_archive,
    definitions,
    references,
)
from prorl_service.sandbox.images.apptainer_build import ApptainerSource
from prorl_service.sandbox.kinds import KINDS, open_images

if TYPE_CHECKING:
    ImageKind = str
else:
    ImageKind = Literal[tuple(name for name, kind in KINDS.items() if kind.has_images)]

images = App(name="images", help="Pull, build, list and prune sandbox images.")

REFERENCES = references.__doc__.split("\n\n", 1)[1] if references.__doc__ else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    kind: ImageKind = "apptainer"
    """Kind of sandbox whose images they are: Podman and Docker have stores of their own."""
    cache: Path | None = None
    """Directory of the cache (default: images in $PRORL_CACHE)."""

    def open(
        self, budget_gb: float | None = None, *, bases: Sequence[str] = (), network: bool = True
    ) -> ImageStore:
        """Opens the store. `budget_gb`: maximum size of finished images. Raises `SandboxError`."""
        options = ImageOptions(
            root=self.cache,
            budget_bytes=_bytes(budget_gb),
            bases=tuple(bases),
            build_network=network,
        )
        return open_images(self.kind, options)


Cache = Annotated[CacheOptions, Parameter(name="*")]
Budget = Annotated[
    NonNegativeFloat | None,
    Parameter(help="Maximum size of finished images in the cache, in GB."),
]


@images.command(help_epilogue=REFERENCES)
def pull(
    *references: Annotated[str, Parameter(allow_leading_hyphen=True)],
    parallel: PositiveInt = 4,
    budget: Budget = None,
    options: Cache = CacheOptions(),
) -> int:
    """Pull images ahead of use, and look up where tags point now.

    Parameters
    ----------
    references
        Images; '-' reads them from standard input.
    parallel
        Concurrent pulls.
    """
    wanted = _from_stdin(references)
    if not wanted:
        raise InvalidRequest.of_field("references", "name at least one image")
    pulling = options.open(budget).prefetch(wanted, parallel=parallel, on_progress=show_pulled)
    pulled = asyncio.run(pulling)
    failed = [one for one in pulled if one.error is not None]
    for one in failed:
        assert one.error is not None
        hint = f" ({one.error.hint})" if one.error.hint else ""
        print(f"prorl: {one.reference}: {one.error}{hint}", file=sys.stderr)
    return 2 if failed else 0


@images.command
def build(
    name: str,
    source: str | None = None,
    /,
    *,
    debian: str | None = None,
    include: str = "",
    mirror: str | None = None,
    base: Annotated[tuple[str, ...], Parameter(metavar="IMAGE=REFERENCE")] = (),
    no_network: bool = False,
    budget: Budget = None,
    options: Cache = CacheOptions(),
) -> None:
    """Build an image of your own.

    Parameters
    ----------
    name
        Name of the image; tasks refer to it as local:NAME.
    source
        A directory with a Dockerfile or of a root file system, a Dockerfile, a definition, or any
        reference.
    debian
        Debian suite, instead of a source.
    include
        Debian packages, separated by commas.
    mirror
        URL of a Debian mirror (default: where apt looks).
    base
        Replacement for a base image of a Dockerfile. Repeatable.
    no_network
        Give commands of a Dockerfile no network; they have the host's otherwise.
    """
    if (source is None) == (debian is None):
        raise InvalidRequest.of_field("source", "give either a source or --debian")
    if debian is not None:
        packages = tuple(word.strip() for word in include.split(",") if word.strip())
        made_of: ApptainerSource | str = definitions.of_debian(
            debian, include=packages, mirror=mirror
        )
    else:
        made_of = _made_of(source or "")
    cache = options.open(budget, bases=base, network=not no_network)
    made = asyncio.run(cache.build(name, made_of))
    where = made.path if options.kind == "apptainer" else made.source
    print(f"local:{name}  {decimal(made.size_bytes)}  {where}")


@images.command(name="list")
def list_(*, options: Cache = CacheOptions()) -> None:
    """Show the images of the cache, least recently used first."""
    _show(asyncio.run(options.open().entries()))


@images.command
def prune(
    *,
    budget: NonNegativeFloat | None = None,
    older_than: NonNegativeFloat | None = None,
    everything: Annotated[bool, Parameter("--all")] = False,
    dry_run: bool = False,
    options: Cache = CacheOptions(),
) -> None:
    """Remove unused images and the leftovers of crashed processes.

    Parameters
    ----------
    budget
        Size to prune down to, in GB. Images built here are kept.
    older_than
        Remove images unused for this many days.
    everything
        Remove all unused images.
    dry_run
        Only list what would be removed.
    """
    removed = asyncio.run(
        options.open().prune(
            budget_bytes=_bytes(budget),
            unused_s=None if older_than is None else older_than * 86400,
            everything=everything,
            dry_run=dry_run,
        )
    )
    _show(removed)
    verb = "would remove" if dry_run else "removed"
    print(f"{verb} {len(removed)}: {decimal(sum(entry.size_bytes for entry in removed))}")


def _from_stdin(given: Sequence[str]) -> Sequence[str]:
    if given == ("-",):
        given = sys.stdin.read().split()
    for reference in given:
        references.parse(reference)
    return given


def _made_of(source: str) -> ApptainerSource | str:
    path = Path(source)
    if path.is_file() and path.suffix == ".def":
        return definitions.of_file(path)
    if path.is_file() and definitions.is_dockerfile(path):
        return context_archive(path.parent, path)
    if (path / "Dockerfile").is_file():
        return context_archive(path)
    return str(path.absolute()) if path.is_dir() else source


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else int(gigabytes * 1e9)


def _show(entries: list[CachedImage]) -> None:
    if not entries:
        return
    table = Table("size", "last use", "in use", "names", "source", box=None)
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used_at))
        names = "\n".join(entry.names) or entry.digest[:19]
        table.add_row(
            decimal(entry.size_bytes), used, "yes" if entry.in_use else "", names, entry.source
        )
    Screen(sys.stdout).table(table)


def show_pulled(pulled: Pulled) -> None:
    """Prints a line when an image is pulled, and one when that has ended."""
    if pulled.state == "working":
        print(f"pulling {pulled.reference}", file=sys.stderr, flush=True)
    elif pulled.state in ("done", "failed"):
        size = "" if pulled.size_bytes is None else f" {decimal(pulled.size_bytes)}"
        took = f"{size} in {pulled.seconds:.1f} s"
        print(f"{pulled.state} {pulled.reference}{took}", file=sys.stderr, flush=True)
