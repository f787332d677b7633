"""Full-text search over what was said in the rollouts that the shelf keeps whole.

Indexes (FTS5) hold words and their places, no text: excerpts are read from the rollouts' content.
SQLite before 3.43 deletes from such an index only with the text at hand. So there is an index for
each range of groups, which is dropped when none of them is whole any more. Rollouts evicted before
that stay in it, and are not found, since a query asks for content that is there.

Plain functions on a connection; the caller opens the transaction and handles `sqlite3.Error`.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from typing import Any

import orjson

from prorl_service.errors import InvalidRequest
from prorl_service.schemas.text_search import Excerpt, words_of
from prorl_service.shelf.tables import STRIDE, ContentState, expanded

LEAST_GROUPS, MOST_GROUPS = 8, 256
"""Groups in one index: the share of the shelf that evicted rollouts may still take is small."""
MOST_CHARS = 2**20
"""Most characters of a rollout that are indexed: the journal waits meanwhile."""
AROUND_CHARS = 80
"""Characters of an excerpt before and after what was found."""
APART = " \ue000 "
"""Stands between two texts: a word, so that no phrase spans both."""
_NOISE = re.compile(r"[^\W_]{65,}")
"""Keys, digests, encoded files: nobody searches for them, and each would be a word of its own."""


@cache
def is_available() -> bool:
    """Returns whether this Python's SQLite has FTS5."""
    with closing(sqlite3.connect(":memory:")) as db:
        return ("ENABLE_FTS5",) in db.execute("PRAGMA compile_options").fetchall()


def groups_of(shelf_bytes: int) -> int:
    """Returns the number of groups in each index of a shelf of that size."""
    return max(LEAST_GROUPS, min(MOST_GROUPS, shelf_bytes // 2**21))


# --- writing ------------------------------------------------------------------------------------


def put(db: sqlite3.Connection, row_id: int, answer: bytes, request: bytes, groups: int) -> None:
    """Indexes a rollout whose content is kept; both texts are JSON. Does nothing without FTS5."""
    if not is_available():
        return
    first = row_id // STRIDE // groups * groups
    name = f"texts_{first}_{first + groups}"
    db.execute(
        f"CREATE VIRTUAL TABLE IF NOT EXISTS {name} USING"
        " fts5(said, content='', columnsize=0, tokenize='unicode61 remove_diacritics 0')"
    )
    text = APART.join(said for _, said in _texts(answer, request))[:MOST_CHARS]
    db.execute(f"INSERT INTO {name} (rowid, said) VALUES (?, ?)", (row_id, _NOISE.sub(" ", text)))


def drop_before(db: sqlite3.Connection, number: int | None) -> None:
    """Drops the indexes of groups before that one, which are no longer whole; None drops all."""
    if not is_available():
        return
    for _, stop, name in _indexes(db):
        if number is None or stop <= number:
            db.execute(f"DROP TABLE {name}")


def _indexes(db: sqlite3.Connection) -> list[tuple[int, int, str]]:
    """Returns the first group of each index, the end of its range, and its name, in order."""
    query = "SELECT name FROM sqlite_schema WHERE sql LIKE 'CREATE VIRTUAL TABLE%'"
    names = [name for (name,) in db.execute(query)]
    return sorted((*map(int, name.split("_")[1:]), name) for name in names)


def _texts(answer: bytes, request: bytes) -> Iterator[tuple[str, str]]:
    """Yields what was said in a rollout, with its place."""
    rollout, task = orjson.loads(answer), orjson.loads(request)["task"]
    for message in task["messages"]:
        yield "prompt", message["content"]
    if (error := rollout.get("error")) is not None:
        yield "error", f"{error['message']}\n{error.get('hint', '')}"
    for number, turn in enumerate((rollout.get("trajectory") or {}).get("turns", ()), 1):
        yield f"turn {number}", turn["text"]
        for call in turn.get("tool_calls", ()):
            yield f"turn {number}, call of {call['name']}", _said_in(call.get("arguments"))
            yield f"turn {number}, output of {call['name']}", call["output"]
    if (report := rollout.get("report")) is not None:
        yield "report", _said_in(report)


def _said_in(value: Any) -> str:
    """Returns all texts within a JSON value, a line each."""
    if isinstance(value, dict):
        return "\n".join(f"{name} {_said_in(one)}" for name, one in value.items())
    if isinstance(value, list):
        return "\n".join(map(_said_in, value))
    return "" if value is None else str(value)


# --- reading ------------------------------------------------------------------------------------


def row_ids(db: sqlite3.Connection, text: str) -> bytes:
    """Returns a JSON array of the rows in whose texts the words follow each other; the last one may
    be the beginning of a word. Rows that are no longer whole are among them.

    Raises `InvalidRequest` without FTS5.
    """
    if not is_available():
        hint = "use a Python whose SQLite has it"
        raise InvalidRequest.of_field("text", "this service's SQLite lacks FTS5", hint=hint)
    phrase = f'"{" ".join(words_of(text))}" *'
    found: list[int] = []
    for _, _, name in _indexes(db):
        query = f"SELECT rowid FROM {name} WHERE {name} MATCH ?"
        found += (row_id for (row_id,) in db.execute(query, (phrase,)))
    return orjson.dumps(found)


def count(db: sqlite3.Connection) -> int:
    """Returns the number of rollouts whose texts are searched."""
    first, *_ = min(_indexes(db), default=(None,))
    query = "SELECT count(*) FROM rollouts WHERE id >= ? * ? AND content = ?"
    return int(db.execute(query, (first, STRIDE, ContentState.HERE)).fetchone()[0])


def excerpt(db: sqlite3.Connection, row_id: int, text: str) -> Excerpt | None:
    """Returns the first place where a rollout has the text; None if it is beyond `MOST_CHARS`, or
    between characters that SQLite and Python take for different ones."""
    content, request = db.execute(
        "SELECT content, request FROM contents, requests WHERE id = ? AND number = ?",
        (row_id, row_id // STRIDE),
    ).fetchone()
    pattern = re.compile(r"(?<![^\W_])" + r"[\W_]+".join(words_of(text)), re.IGNORECASE)
    for place, said in _texts(expanded(content), expanded(request)):
        if (found := pattern.search(said)) is not None:
            start, stop = found.span()
            return Excerpt(
                place=place,
                before=said[max(0, start - AROUND_CHARS) : start],
                match=said[start:stop],
                after=said[stop : stop + AROUND_CHARS],
            )
    return None
