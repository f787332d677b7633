"""Prepares a data set: rows in one normal form, their images, and a manifest of what was done.

`python -m recipes.swebench.prepare --dataset skyrl_293 --output DIR` writes

    rows.jsonl       the instances (`recipes.swebench.rows.SweInstance`)
    rejected.jsonl   rows that cannot be used, each with its reason
    manifest.json    data set and revision, counts, images and their digests, versions
    admission.jsonl  decisions of the admission so far (absent with `--no-admit`)

Run again, it continues where it was. Trains and evaluates nothing.
"""

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveInt
from pydantic import BaseModel, Field
from rich.console import Console

from prorl_service.cli.images import show_pulled
from prorl_service.cli.program import run
from prorl_service.errors import InvalidRequest, ProRLError
from prorl_service.sandbox import provider
from prorl_service.sandbox.images import ImageCache, ImageOptions
from recipes.common.data import preparation, sources
from recipes.swebench import grading
from recipes.swebench.data import admission, prefetch
from recipes.swebench.data.admission import Admit
from recipes.swebench.data.columns import DATA
from recipes.swebench.data.environments import GradedBy
from recipes.swebench.data.selection import Selection, select, select_offline
from recipes.swebench.grading import Admission
from recipes.swebench.rows import SweInstance

Name = Literal[
    "verified",
    "lite",
    "full",
    "swe_gym",
    "skyrl_293",
    "r2e_gym",
    "swe_smith",
    "rebench",
    "rebench_v2",
    "live",
    "pro",
    "nemotron",
    "own",
    "offline",
]
SHOWN = 20
"""Most refused rows that are printed."""


@dataclass(frozen=True, slots=True)
class Options:
    dataset: Name
    output: Path
    path: Path | None = None
    split: str | None = None
    revision: str | None = None
    limit: int | None = None
    graded_by: GradedBy = "recorder"
    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns instead of those of the rows' layouts, by the names in `layouts.toml`."""
    with_images: bool = True
    image_cache: Path | None = None
    image_mb: float = prefetch.IMAGE_MB
    parallel: int = 4


class Image(BaseModel):
    digest: str
    bytes: int


class Manifest(preparation.PreparedManifest):
    graded_by: GradedBy
    columns: dict[str, str] = Field({})
    """Columns that were given instead of those of the rows' layouts."""
    instances: int
    tests_left_out: int
    """Number of ids left out of both lists: cut ones, R2E-Gym's expected failures, flaky ones."""
    admitted: bool
    images: dict[str, Image]
    """Images that are in the cache, keyed by name. Empty without images."""
    complete: bool
    """True if another run could add nothing: all failures are final."""


async def prepare(
    options: Options,
    *,
    admit: Admit | None = None,
    pause: prefetch.Pause = asyncio.sleep,
    console: Console | None = None,
) -> Manifest:
    """Prepares a data set. Raises `ProRLError` if nothing can be prepared, and writes nothing
    then."""
    console = console or Console(stderr=True)
    preparation.check_directory(options.output, options.dataset)
    selection = _selection(options, console)
    if not selection.instances:
        raise preparation.nothing_usable(selection.rejected)
    options.output.mkdir(parents=True, exist_ok=True)
    cache = ImageCache(options.image_cache)
    complete = True
    if options.with_images:
        selection, complete = await _with_images(selection, cache, options, pause, console)
    if admit is not None:
        selection, decided = await _admitted(selection, admit, options, console)
        complete = complete and decided
    preparation.write_lines(options.output / preparation.REJECTED, selection.rejected)
    preparation.write_lines(options.output / preparation.ROWS, selection.instances)
    manifest = Manifest(
        dataset=options.dataset,
        source=selection.source.name,
        revision=selection.source.revision,
        split=selection.source.split,
        graded_by=options.graded_by,
        columns=dict(options.columns),
        rows_read=selection.rows_read,
        instances=len(selection.instances),
        rejected=preparation.counts(selection.rejected),
        tests_left_out=selection.tests_left_out,
        admitted=admit is not None,
        images=await _known(cache, selection.instances) if options.with_images else {},
        complete=complete,
        versions=preparation.versions(),
    )
    preparation.write_manifest(options.output, manifest)
    _show_refused(selection.rejected, console)
    return manifest


def _show_refused(rejected: Sequence[preparation.Rejected], console: Console) -> None:
    """Prints a line for each row."""
    for one in rejected[:SHOWN]:
        named = one.detail if one.instance in one.detail else f"{one.instance}: {one.detail}"
        console.print(named, markup=False, highlight=False, soft_wrap=True)
    if len(rejected) > SHOWN:
        console.print(f"and {len(rejected) - SHOWN} more, all in {preparation.REJECTED}")


def _selection(options: Options, console: Console) -> Selection:
    if options.dataset == "offline":
        preparation.check_offline(options.dataset, options.path, options.split, options.revision)
        return select_offline(options.limit, console.print)
    data_set = DATA.sets.get(options.dataset)
    if options.path is not None:
        split = options.split or (data_set.split if data_set else "all")
        source = sources.from_path(options.path, split)
    elif data_set is None:
        raise InvalidRequest.of_field(
            "from", "your own data set is in a file", hint="name the file: --from rows.jsonl"
        )
    else:
        split = options.split or data_set.split
        source = sources.from_hub(data_set.hub, split, options.revision, data_set.files)
    with preparation.progress("rows", source.total, console) as advance:
        return select(source, options.graded_by, options.columns, options.limit, advance)


async def _with_images(
    selection: Selection,
    cache: ImageCache,
    options: Options,
    pause: prefetch.Pause,
    console: Console,
) -> tuple[Selection, bool]:
    """Rejects the instances whose image cannot be fetched; returns whether that is final, too."""
    references = list(dict.fromkeys(row.image for row in selection.instances if row.image))
    absent = await prefetch.missing(cache, references)
    estimate = prefetch.check_disk(cache.root, len(absent), options.image_mb, options.parallel)
    if absent:
        console.print(estimate, markup=False)
    failed = await prefetch.fetch(
        cache, absent, parallel=options.parallel, on_progress=show_pulled, pause=pause
    )
    reasons = {
        row.instance_id: f"{failed[row.image]}{_hint(failed[row.image])}"
        for row in selection.instances
        if row.image in failed
    }
    complete = not any(error.retryable for error in failed.values())
    return selection.without(reasons, "its image cannot be fetched"), complete


async def _admitted(
    selection: Selection, admit: Admit, options: Options, console: Console
) -> tuple[Selection, bool]:
    with preparation.progress("admission", len(selection.instances), console) as advance:

        def done(row: SweInstance, found: Admission) -> None:
            console.print(f"{row.instance_id}: {_said(found)}", markup=False)
            advance()

        kept = options.output / "admission.jsonl"
        decisions = await admission.decide(
            selection.instances, admit, kept, parallel=options.parallel, on_done=done
        )
    return selection.admitted(decisions.admissions), not decisions.may_pass


def _said(found: Admission) -> str:
    if found.row is None:
        return found.reason
    return f"admitted without {len(found.flaky)} flaky tests" if found.flaky else "admitted"


async def _known(cache: ImageCache, instances: Iterable[SweInstance]) -> dict[str, Image]:
    wanted = {prefetch.name_of(row.image) for row in instances if row.image}
    return {
        name: Image(digest=entry.digest, bytes=entry.size_bytes)
        for entry in await cache.entries()
        for name in entry.names
        if name in wanted
    }


def _hint(error: ProRLError) -> str:
    return f" ({error.hint})" if error.hint else ""


def show(manifest: Manifest, console: Console) -> None:
    table = preparation.summary(manifest, "instances", manifest.instances)
    table.add_row("tests left out", str(manifest.tests_left_out))
    gigabytes = sum(image.bytes for image in manifest.images.values()) / 1e9
    table.add_row("images", f"{len(manifest.images)}, {gigabytes:.1f} GB")
    console.print(table)


def main(
    dataset: Annotated[Name, Parameter(help="Data set to prepare.")],
    output: preparation.Output,
    path: preparation.From = None,
    split: preparation.Split = None,
    revision: preparation.Revision = None,
    limit: Annotated[PositiveInt | None, Parameter(help="Stop after N usable instances.")] = None,
    graded_by: Annotated[
        GradedBy,
        Parameter(help="'log' grades all by SWE-bench's commands and parsers, for its own scores."),
    ] = "recorder",
    column: Annotated[
        list[str] | None,
        Parameter(
            consume_multiple=True,
            help="Columns of your rows' layout, such as test=config.test_cmd image=docker_image;"
            " docs/swe.md lists the names. After ==, a text.",
        ),
    ] = None,
    with_images: Annotated[bool, Parameter("--images", negative="--no-images")] = True,
    image_cache: Annotated[
        Path | None, Parameter(help="Image cache; default: images in $PRORL_CACHE.")
    ] = None,
    image_mb: Annotated[
        NonNegativeFloat, Parameter(help="Estimated MB of an image, to check the disk.")
    ] = prefetch.IMAGE_MB,
    parallel: Annotated[PositiveInt, Parameter(help="Concurrent images, or gradings.")] = 4,
    admit: Annotated[
        bool,
        Parameter(
            negative="--no-admit",
            help="Keep instances that their reference patch resolves three times, and a patch that"
            " fixes nothing does not.",
        ),
    ] = True,
) -> int:
    """Prepare a data set for training or evaluation. Exits with code 2 if work is left."""
    options = Options(
        dataset=dataset,
        output=output,
        path=path,
        split=split,
        revision=revision,
        limit=limit,
        graded_by=graded_by,
        columns=_columns(column or []),
        with_images=with_images,
        image_cache=image_cache,
        image_mb=image_mb,
        parallel=parallel,
    )
    manifest = asyncio.run(_run(options, admit=admit))
    show(manifest, Console())
    if not manifest.complete:
        print("prorl: some work is left: run the same command again", file=sys.stderr)
        return 2
    return 0


def _columns(given: Sequence[str]) -> dict[str, str]:
    """Reads NAME=COLUMN. Raises `InvalidRequest`."""
    columns = dict(one.split("=", 1) for one in given if "=" in one)
    for one in given:
        if one.partition("=")[0] not in DATA.columns.keys() & columns.keys():
            problem = f"{one} is not NAME=COLUMN with a name of {', '.join(DATA.columns)}"
            raise InvalidRequest.of_field("column", problem)
    return columns


async def _run(options: Options, *, admit: bool) -> Manifest:
    if not admit:
        return await prepare(options)
    async with provider("auto", images=ImageOptions(root=options.image_cache)) as sandboxes:
        return await prepare(options, admit=lambda row: grading.admit(row, sandboxes))


if __name__ == "__main__":
    run(main)
