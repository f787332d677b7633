"""The run that owns a journal: state of another run is never joined silently.

Plain functions of a connection, for startup only.
"""

import json
import logging
import sqlite3
from collections.abc import Iterator

from prorl_service.errors import JournalError
from prorl_service.rollouts.journal.tables import recall, remember
from prorl_service.utils.runs import new_run

log = logging.getLogger(__name__)

RUN = "run"
WEIGHTS = "weights"
POLICY = "policy"
"""Keys of the journal for the name of its run, the newest weights, and the lease of the policy."""


def claim(db: sqlite3.Connection, journal: str, run: str | None, *, resume: bool) -> str:
    """Returns the run that the journal belongs to from now on; a new one if `run` names none.

    Raises `JournalError` if it holds anything of a run that is not to be continued.
    """
    known = (recall(db, RUN) or b"").decode() or None
    held = ", ".join(_held(db))
    if held:
        _check(journal, known, held, run, resume=resume)
        log.info("%s continues run %s: %s", journal, known or run, held)
    if held:  # `_check` has verified that this run is to be continued
        name = known or run or new_run()
    elif resume:
        name = run or known or new_run()
    else:
        name = run or new_run()
    remember(db, RUN, name.encode())
    return name


def _check(journal: str, known: str | None, held: str, run: str | None, *, resume: bool) -> None:
    if not resume:
        raise JournalError(
            f"{journal} holds run {known or 'of an unknown name'}: {held}",
            hint="continue it with --resume, or begin a new run with another --run or --journal",
        )
    if known is not None and run not in (None, known):
        raise JournalError(
            f"{journal} holds run {known}, not {run}: {held}",
            hint=f"leave out --run to continue {known}, or give {run} another --journal",
        )


def _held(db: sqlite3.Connection) -> Iterator[str]:
    for what, query in (
        ("unfinished groups", "SELECT count(*) FROM groups WHERE ended_at IS NULL"),
        ("ended groups", "SELECT count(*) FROM groups WHERE ended_at IS NOT NULL"),
        ("samplers", "SELECT count(*) FROM samplers"),
    ):
        (count,) = db.execute(query).fetchone()
        if count:
            yield f"{count} {what if count > 1 else what[:-1]}"
    weights = recall(db, WEIGHTS)
    if weights is not None:
        fields = json.loads(weights)
        pushed = {"newest": fields} if "version" in fields else fields
        for what, one in (
            ("weights", pushed["newest"]),
            ("offered weights", pushed.get("offered")),
        ):
            if one is not None:
                model = one.get("model")
                name = f" of {model['name']}" if model else ""
                yield f"{what} of version {one['version']}{name}"
