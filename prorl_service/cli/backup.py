"""`prorl backup`: a journal with its shelf, history, weights and sandboxes, also one in use.

The copy is of one moment. A service that is given the copied journal continues from there.
"""

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import BinaryIO

from prorl_service.errors import ProRLError
from prorl_service.inference.pushed import PushedWeights
from prorl_service.rollouts.journal.copy import check_journal, open_to_read
from prorl_service.rollouts.journal.owner import WEIGHTS
from prorl_service.rollouts.journal.tables import recall

UNFINISHED = ".unfinished"


def backup(journal: Path, directory: Path, /) -> None:
    """Copy a journal, its shelf, weights and saved sandboxes, also while a service has them.

    All that the service acknowledged before is in the copy.

    Parameters
    ----------
    journal
        File that `prorl serve --journal` names.
    directory
        New directory for the copy. It gets its name when the copy is whole.
    """
    if not journal.is_file():
        raise ProRLError(f"{journal}: no such journal", hint="name the file of --journal")
    if directory.exists():
        raise ProRLError(f"{directory} exists", hint="name a new directory")
    unfinished = directory.with_name(f"{directory.name}{UNFINISHED}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(mode=0o700, parents=True)
        _copy_all(journal, unfinished / journal.name)
        unfinished.rename(directory)
    except (OSError, sqlite3.Error) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise ProRLError(f"{journal} cannot be copied to {directory}: {error}") from error
    print(f"to restore it: prorl serve --journal {directory / journal.name} --resume ...")


def _copy_all(journal: Path, target: Path) -> None:
    with ExitStack() as opened:
        for file in _copied_with_weights(journal, target, opened):
            weights = _beside(target, ".weights")
            weights.mkdir(mode=0o700, exist_ok=True)
            with (weights / Path(file.name).name).open("xb") as copy:
                shutil.copyfileobj(file, copy, 2**24)
    for kind in (".shelf", ".history"):
        if (source := _beside(journal, kind)).exists():
            _copy_database(source, _beside(target, kind))
    layers = _beside(target, ".layers")
    layers.mkdir(mode=0o700)
    for layer in _beside(journal, ".layers").glob("*"):
        with suppress(FileNotFoundError):  # its rollout has gone on
            shutil.copyfile(layer, layers / layer.name)


def _copied_with_weights(journal: Path, target: Path, opened: ExitStack) -> list[BinaryIO]:
    """Copies the journal, again if a push removes the weights that the copy names before they are
    opened."""
    missing = ""
    while True:
        _copy_database(journal, target)
        try:
            return [opened.enter_context(path.open("rb")) for path in _weights(journal, target)]
        except FileNotFoundError as error:
            if error.filename == missing:
                print(f"without the newest weights: {missing} is gone", file=sys.stderr)
                return []
            missing = error.filename
        target.unlink()


def _copy_database(source: Path, target: Path) -> None:
    """Copies it in one transaction, which holds up no writer."""
    with closing(open_to_read(source)) as db, closing(sqlite3.connect(target)) as copy:
        db.backup(copy)


def _weights(journal: Path, copy: Path) -> Iterator[Path]:
    """Yields the service's own files among the weights that the copy names."""
    directory = _beside(journal, ".weights")
    with closing(sqlite3.connect(copy)) as db:
        check_journal(db, journal)
        pushed = PushedWeights.from_json(recall(db, WEIGHTS), directory)
    for one in (pushed.newest, pushed.offered):
        if one is not None and Path(one.source.path).parent.name == directory.name:
            yield directory / Path(one.source.path).name


def _beside(journal: Path, suffix: str) -> Path:
    return journal.with_name(f"{journal.name}{suffix}")
