"""A published row, read by its columns: which of them means what is data, in `layouts.toml`."""

import ast
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from recipes.common.data.fields import Row, RowError
from recipes.swebench.data.commands import named_files

Column = str | list[str]
"""A column, or a text after "="; or several, of which the first that a row has counts."""


class DataSet(BaseModel):
    model_config = ConfigDict(extra="forbid")

    hub: str
    split: str
    files: list[str] = []


class Parsers(BaseModel):
    model_config = ConfigDict(extra="forbid")

    known: list[str]
    renamed: dict[str, str]


class Layout(BaseModel):
    model_config = ConfigDict(extra="forbid")

    source: str
    """Public source of the columns."""
    signs: list[str] = []
    """Columns that tell these rows from others."""
    repositories: list[str] = []
    """Repositories of the data set, where no column tells its rows from others."""
    owner: str = ""
    """Owner of images whose names have none."""
    columns: dict[str, Column] = {}

    def fits(self, fields: Mapping[str, Any]) -> bool:
        known = not self.repositories or str(fields.get("repo")).lower() in self.repositories
        return known and all(value_at(fields, sign) is not None for sign in self.signs)


class Data(BaseModel):
    """Content of `layouts.toml`."""

    model_config = ConfigDict(extra="forbid")

    inside: list[str]
    sets: dict[str, DataSet]
    parsers: Parsers
    columns: dict[str, Column]
    layouts: dict[str, Layout]


DATA = Data.model_validate(tomllib.loads(Path(__file__).with_name("layouts.toml").read_text()))

_FIELD = re.compile(r"(?<!\$)\{([\w.@]+)(?:\|(\w+))?\}")


def value_at(value: Any, path: str) -> Any:
    """Returns what is at a dotted path into objects and JSON texts of objects; None if nothing."""
    if isinstance(value, str):
        value = _parsed(value, "{")
    if not isinstance(value, Mapping):
        return None
    if path in value:
        return value[path]
    first, _, rest = path.partition(".")
    return value_at(value.get(first), rest) if rest else None


def unwrapped(row: Row) -> Row:
    """Returns the row that is in a column of this one, with the other columns; else this one."""
    for path in DATA.inside:
        inner = value_at(row.fields, path)
        inner = _parsed(inner, "{") if isinstance(inner, str) else inner
        if isinstance(inner, Mapping):
            return Row({**row.fields, **inner}, f"{row.where}, {path}")
    return row


class Columns:
    """A row by the names of `DATA.columns`. `given`: columns instead of those of its layout.

    What is missing is a `RowError` that names the option to give.
    """

    def __init__(self, row: Row, given: Mapping[str, str]) -> None:
        self.row = row
        self.layout = next(one for one in DATA.layouts.values() if one.fits(row.fields))
        columns = {**DATA.columns, **self.layout.columns, **given}
        self._columns = {key: [it] if isinstance(it, str) else it for key, it in columns.items()}

    def find(self, name: str) -> Any:
        """Returns the value as it is in the row; None if the row has none."""
        for column in self._columns[name]:
            is_text = column.startswith("=")
            value = self._filled(column[1:]) if is_text else value_at(self.row.fields, column)
            if value not in (None, ""):
                return value
        return None

    def optional(self, name: str) -> str:
        """Returns a text, or a number as text; "" if the row has none."""
        value = self.find(name)
        if not isinstance(value, str | int | float | None):
            raise self.row.error(f"{name} is not text", f"it is {str(value)[:80]!r}")
        return "" if value is None else str(value)

    def text(self, name: str) -> str:
        value = self.optional(name)
        if not value.strip():
            raise self.missing(name)
        return value

    def texts(self, name: str) -> list[str]:
        """Returns a list, or JSON or Python text of one, without repetitions."""
        value = _listed(self.find(name))
        if value is None:
            raise self.missing(name)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.row.error(f"{name} is not a list of texts", f"it is {str(value)[:80]!r}")
        return list(dict.fromkeys(value))

    def commands(self, name: str) -> list[str]:
        """Returns a command, or several; none if the row has none."""
        value = _listed(self.find(name))
        values = value if isinstance(value, list) else [value]
        return [str(one).strip() for one in values if one is not None and str(one).strip()]

    def image(self) -> str:
        name = self.text("image")
        return name if "/" in name or not self.layout.owner else f"{self.layout.owner}/{name}"

    def parser(self, name: str) -> str:
        """Returns our name of the log parser that a row calls `name`."""
        if not name:
            raise self.missing("parser")
        ours = DATA.parsers.renamed.get(name, name)
        if ours not in DATA.parsers.known:
            hint = "if another reads the log: --column parser==parse_log_pytest"
            raise self.row.error("no such log parser here", f"{name[:60]!r}; {hint}")
        return ours

    def missing(self, name: str) -> RowError:
        columns = ", ".join(one for one in self._columns[name] if not one.startswith("="))
        has = f"the row has no {columns}; " if columns else ""
        return self.row.error(f"{name} is missing", f"{has}give --column {name}=COLUMN")

    def _filled(self, text: str) -> str | None:
        """Returns the text with its columns; None if the row lacks one."""
        values = [self._field(*field) for field in _FIELD.findall(text)]
        given = iter(value for value in values if value is not None)
        return None if None in values else _FIELD.sub(lambda _: next(given), text)

    def _field(self, name: str, joint: str) -> str | None:
        if name == "@files":
            return " ".join(named_files(self.optional("test_patch")))
        if name == "@name":
            return self.optional("repo").rpartition("/")[2] or None
        value = _listed(value_at(self.row.fields, name))
        text = " ".join(map(str, value)) if isinstance(value, list) else value
        if text is None:
            return None
        return str(text).lower().replace("__", joint) if joint else str(text)


def _listed(value: Any) -> Any:
    return _parsed(value, "[") if isinstance(value, str) else value


def _parsed(text: str, start: str) -> Any:
    """Returns what JSON or Python text stands for if it begins with `start`; else the text."""
    for parse in (json.loads, ast.literal_eval) if text.lstrip().startswith(start) else ():
        try:
            return parse(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return text
