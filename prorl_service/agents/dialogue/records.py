"""Records of a company in tables, and the tools that look them up and change them. No I/O.

A rollout has a copy of its own. What the tools allow is not what the rules of a task allow: keeping
to those is the policy's part.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.schemas import Text

Name = Annotated[str, Field(min_length=1, max_length=200)]
MAX_CHARS = 1000
MAX_NUMBER = 2**53


def _bounded(value: str | bool | int | float) -> str | bool | int | float:
    """Returns 3 for 3.0. Raises `ValueError`, for NaN, too."""
    if len(value) > MAX_CHARS if isinstance(value, str) else not abs(value) <= MAX_NUMBER:
        raise ValueError(f"longer than {MAX_CHARS} characters, or no number up to 2**53")
    return int(value) if isinstance(value, float) and value.is_integer() else value


Value = Annotated[Text | bool | int | float, AfterValidator(_bounded)]
Record = dict[Name, Value]
Tables = dict[Name, dict[Name, Record]]
Changes = dict[Name, dict[Name, Record | None]]
"""New values by table, id and field; None for a record that is removed."""


def changed(tables: Tables, changes: Changes) -> Tables:
    """Returns a changed copy. Raises `KeyError` for a record or field that is not there."""
    found = deepcopy(tables)
    for table, records in changes.items():
        for id_, fields in records.items():
            if fields is None:
                del found[table][id_]
                continue
            for field, value in fields.items():
                found[table][id_][field]
                found[table][id_][field] = value
    return found


def are_equal(one: Tables, other: Tables) -> bool:
    """Compares as JSON: True is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def different(one: Tables, other: Tables) -> list[str]:
    """Returns the places of records that are not in both alike."""
    places = {(table, id_) for tables in (one, other) for table in tables for id_ in tables[table]}
    return [
        f"{table}/{id_}"
        for table, id_ in sorted(places)
        if not are_equal(_only(one, table, id_), _only(other, table, id_))
    ]


def _only(tables: Tables, table: str, id_: str) -> Tables:
    return {table: {key: one for key, one in tables.get(table, {}).items() if key == id_}}


class RecordKey(BaseModel):
    model_config = ConfigDict(extra="forbid")

    table: str = Field(description="Name of the table.")
    id: str = Field(description="Id of the record.")


class FieldEdit(RecordKey):
    field: str = Field(description="Name of the field.")
    value: Annotated[Value, WithJsonSchema({"type": ["string", "number", "boolean"]})] = Field(
        description="New value, of the old one's type."
    )


class RecordTool(ABC):
    """A tool on `tables`, which a rollout keeps over a restart: a repeated call does no harm."""

    may_repeat = True

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    async def call(self, sandbox: Sandbox, arguments: Any, *, timeout_s: float) -> ToolResult:
        records = self.tables.get(arguments.table)
        if records is None:
            known = ", ".join(self.tables)
            return _mistake(f"There is no table {arguments.table!r}. Tables: {known}.")
        if arguments.id not in records:
            return _mistake(f"{arguments.table} has no {arguments.id!r}.")
        return self.use(records, records[arguments.id], arguments)

    @abstractmethod
    def use(self, records: dict[Name, Record], record: Record, arguments: Any) -> ToolResult:
        """Does what the call asks for with the record, which is among `records`."""


class LookUp(RecordTool):
    name = "look_up"
    description = "Look up a record."
    arguments = RecordKey

    def use(self, records: dict[Name, Record], record: Record, arguments: RecordKey) -> ToolResult:
        return ToolResult(json.dumps(record, ensure_ascii=False))


class ChangeField(RecordTool):
    name = "change"
    description = "Change a field of a record."
    arguments = FieldEdit

    def use(self, records: dict[Name, Record], record: Record, arguments: FieldEdit) -> ToolResult:
        old = record.get(arguments.field)
        if old is None:
            known = ", ".join(record)
            return _mistake(f"The record has no {arguments.field!r}. Fields: {known}.")
        if _kind(old) is not _kind(arguments.value):
            shown = f"{_SHOWN[_kind(old)]}, such as {json.dumps(old)}"
            return _mistake(f"{arguments.field} is {shown}.")
        record[arguments.field] = arguments.value
        return ToolResult("Changed.")


class Remove(RecordTool):
    name = "remove"
    description = "Remove a record for good."
    arguments = RecordKey

    def use(self, records: dict[Name, Record], record: Record, arguments: RecordKey) -> ToolResult:
        del records[arguments.id]
        return ToolResult("Removed.")


TOOLS: tuple[type[LookUp | ChangeField | Remove], ...] = (LookUp, ChangeField, Remove)

_SHOWN: Mapping[type, str] = {str: "a text", bool: "true or false", float: "a number"}


def _kind(value: Value) -> type:
    return float if type(value) is int else type(value)


def _mistake(text: str) -> ToolResult:
    return ToolResult(text, is_error=True)
