"""Prepares a data set of problems: rows in one normal form, and a manifest of what was done.

`python -m recipes.math_code.prepare --dataset deepscaler --output DIR` writes

    rows.jsonl       the problems (`recipes.math_code.rows`)
    rejected.jsonl   rows that cannot be used, each with its reason
    manifest.json    data set and revision, counts, versions
    answers-*.jsonl  findings about answers so far
    corpus/          documents to look things up in, for `offline_stem` only
    level-*.jsonl    the puzzles of each level, for `reasoning_gym` only

Run again, it checks no answer twice and gives the same result. Trains and evaluates nothing, and
does not run the programs.
"""

import asyncio
import json
import os
import shutil
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.types import NonNegativeInt, PositiveInt
from rich.console import Console

import prorl_service
from prorl_service.cli.program import run
from recipes.common.data import preparation, sources
from recipes.common.data.sources import Source
from recipes.math_code.data import puzzles
from recipes.math_code.data.catalogue import DATA_SETS, IN_NORMAL_FORM
from recipes.math_code.data.golds import Golds
from recipes.math_code.data.puzzles import Puzzles
from recipes.math_code.data.selection import Selection, questions_of
from recipes.math_code.offline import stem
from recipes.math_code.offline.catalogue import OFFLINE
from recipes.math_code.rows import Problem, ReasoningProblem, read_rows, write_rows

Name = Literal[
    "deepscaler",
    "dapo_math_17k",
    "eurus_math",
    "eurus_code",
    "scp_116k",
    "aime24",
    "aime25",
    "amc23",
    "livecodebench",
    "offline_math",
    "offline_math_heldout",
    "offline_shell",
    "offline_shell_heldout",
    "offline_code",
    "offline_code_heldout",
    "offline_look",
    "offline_look_heldout",
    "offline_stem",
    "reasoning_gym",
]


@dataclass(frozen=True, slots=True)
class Options:
    dataset: Name
    output: Path
    path: Path | None = None
    split: str | None = None
    revision: str | None = None
    limit: int | None = None
    without: tuple[Path, ...] = ()
    workers: int = 4
    puzzles: Puzzles = field(default_factory=Puzzles)


class Manifest(preparation.PreparedManifest):
    """`rejected` counts rows."""

    problems: int
    repeated: int
    """Number of rows whose question occurred before with the same answer."""
    other_rows: int
    """Number of rows of another part of the data set: code for mathematics, and vice versa."""
    without: dict[str, int]
    """Number of questions to keep out, keyed by prepared directory."""
    puzzles: dict[str, Any] | None = None
    """Generators, levels, count and seed of puzzles."""


async def prepare(options: Options, console: Console | None = None) -> Manifest:
    """Prepares a data set. Raises `ProRLError` if nothing can be prepared, and writes no rows
    then."""
    console = console or Console(stderr=True)
    preparation.check_directory(options.output, options.dataset)
    kept_out = questions_of(options.without)
    source = _source(options)
    options.output.mkdir(parents=True, exist_ok=True)
    unfinished = options.output / f".{preparation.ROWS}.{os.getpid()}"
    golds = Golds(options.workers, options.output)
    try:
        with (
            unfinished.open("w") as file,
            preparation.progress("rows", source.total, console) as advance,
        ):

            def write(problem: Problem) -> None:
                file.write(f"{problem.model_dump_json()}\n")

            data_set = DATA_SETS.get(options.dataset, IN_NORMAL_FORM)
            selection = Selection(data_set, golds, write, kept_out)
            await selection.select(source, options.limit, advance)
        if not selection.problems:
            raise preparation.nothing_usable(selection.rejected)
        _leave_out(unfinished, selection.conflicting)
        unfinished.replace(options.output / preparation.ROWS)
    finally:
        unfinished.unlink(missing_ok=True)
        await golds.close()
    preparation.write_lines(options.output / preparation.REJECTED, selection.rejected)
    if options.dataset == "offline_stem":
        shutil.copytree(stem.CORPUS, options.output / "corpus", dirs_exist_ok=True)
    if options.dataset == puzzles.DATA_SET:
        _write_levels(options.output)
    manifest = _manifest(options, source, selection)
    preparation.write_manifest(options.output, manifest)
    return manifest


def _source(options: Options) -> Source:
    if options.dataset in OFFLINE:
        preparation.check_offline(options.dataset, options.path, options.split, options.revision)
        rows = [problem.model_dump() for problem in OFFLINE[options.dataset]()]
        return Source("this repository", prorl_service.__version__, "all", rows, len(rows))
    if options.dataset == puzzles.DATA_SET:
        preparation.check_offline(options.dataset, options.path, None, options.revision)
        return puzzles.source(options.puzzles, options.split)
    data_set = DATA_SETS[options.dataset]
    split = options.split or data_set.split
    files = data_set.files(split)
    if options.path is not None:
        return sources.from_path(options.path, split, files)
    return sources.from_hub(data_set.hub, split, options.revision, files)


def _leave_out(rows: Path, ids: Collection[str]) -> None:
    """Removes problems that turned out to be unusable after they were written."""
    if not ids:
        return
    kept = rows.with_name(f"{rows.name}.kept")
    with rows.open(newline="\n") as lines, kept.open("w") as file:
        file.writelines(line for line in lines if json.loads(line)["problem_id"] not in ids)
    kept.replace(rows)


def _write_levels(directory: Path) -> None:
    """Writes a file for each level, and removes those of an earlier preparation."""
    for old in directory.glob("level-*.jsonl"):
        old.unlink()
    rows = read_rows(directory / preparation.ROWS)
    made = [row for row in rows if isinstance(row, ReasoningProblem)]
    for level, problems in puzzles.by_level(made).items():
        write_rows(directory / f"level-{level}.jsonl", problems)


def _manifest(options: Options, source: Source, selection: Selection) -> Manifest:
    return Manifest(
        dataset=options.dataset,
        source=source.name,
        revision=source.revision,
        split=source.split,
        rows_read=selection.rows_read,
        problems=selection.problems,
        repeated=selection.repeated,
        other_rows=selection.other_rows,
        rejected=preparation.counts(selection.rejected),
        without=dict(Counter(selection.kept_out.values())),
        versions=preparation.versions("math-verify"),
        puzzles=asdict(options.puzzles) if options.dataset == puzzles.DATA_SET else None,
    )


def show(manifest: Manifest, console: Console) -> None:
    table = preparation.summary(manifest, "problems", manifest.problems)
    table.add_row("repeated rows", str(manifest.repeated))
    table.add_row("rows of other parts", str(manifest.other_rows))
    for directory, questions in manifest.without.items():
        table.add_row("kept out", f"{questions} questions of {directory}")
    console.print(table)


def main(
    dataset: Annotated[Name, Parameter(help="Data set to prepare.")],
    output: preparation.Output,
    path: preparation.From = None,
    split: preparation.Split = None,
    revision: preparation.Revision = None,
    limit: Annotated[PositiveInt | None, Parameter(help="Stop after N usable problems.")] = None,
    without: Annotated[
        list[Path] | None,
        Parameter(help="Prepared directory whose questions are kept out; may be repeated."),
    ] = None,
    workers: Annotated[PositiveInt, Parameter(help="Processes that check answers.")] = 4,
    generators: Annotated[
        list[str] | None,
        Parameter(help="Generator of reasoning_gym; may be repeated; `all`: all of them."),
    ] = None,
    levels: Annotated[
        list[NonNegativeInt] | None,
        Parameter(help="Level of reasoning_gym; may be repeated; default: all of each generator."),
    ] = None,
    count: Annotated[
        PositiveInt, Parameter(help="Puzzles of each generator and level of reasoning_gym.")
    ] = 200,
    seed: Annotated[NonNegativeInt, Parameter(help="Seed of reasoning_gym's puzzles.")] = 0,
) -> None:
    """Prepare a data set for training or evaluation."""
    chosen = Puzzles(
        generators=tuple(generators or puzzles.DEFAULT_GENERATORS),
        levels=tuple(levels) if levels else None,
        count=count,
        seed=seed,
    )
    options = Options(
        dataset=dataset,
        output=output,
        path=path,
        split=split,
        revision=revision,
        limit=limit,
        without=tuple(without or ()),
        workers=workers,
        puzzles=chosen,
    )
    manifest = asyncio.run(prepare(options))
    show(manifest, Console())


if __name__ == "__main__":
    run(main)
