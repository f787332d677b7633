"""Readers for the fields of a data set's row; their errors name the row, the field and the reason.

Independent of any data set.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)


class RowError(ValueError):
    """A row that cannot be used. `reason` is short and free of the row's text, so that equal
    reasons can be counted."""

    def __init__(self, where: str, reason: str, detail: str = "") -> None:
        super().__init__(f"{where}: {reason}{': ' if detail else ''}{detail}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a data set. All readers raise `RowError`."""

    fields: Mapping[str, Any]
    where: str
    """Name by which users find the row, such as `row 12 (django__django-11099)`."""

    def error(self, reason: str, detail: str = "") -> RowError:
        return RowError(self.where, reason, detail)

    def has(self, field: str) -> bool:
        return self.fields.get(field) not in (None, "")

    def text(self, field: str) -> str:
        value = self.fields.get(field)
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"{field} is missing or not text", _shown(value))
        return value

    def texts(self, field: str) -> list[str]:
        """Reads a list, or JSON text of one; drops repetitions."""
        value = self.json(field)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.error(f"{field} is not a list of texts", _shown(value))
        return list(dict.fromkeys(value))

    def json(self, field: str) -> Any:
        """Returns a value as it is, or parses JSON text."""
        value = self.fields.get(field)
        if value is None:
            raise self.error(f"{field} is missing")
        if isinstance(value, str):
            try:
                return json.loads(value)
            except (ValueError, RecursionError) as error:  # numbers may be too long, lists too deep
                raise self.error(f"{field} is not JSON", str(error)) from error
        return value

    def inner(self, field: str) -> "Row":
        """Reads an object in a field as a row."""
        value = self.json(field)
        if not isinstance(value, Mapping):
            raise self.error(f"{field} is not an object", _shown(value))
        return Row(value, f"{self.where}, {field}")

    def model(self, field: str, kind: type[M]) -> M:
        """Validates an object in a field as a `kind`."""
        try:
            return kind.model_validate(self.json(field))
        except ValidationError as error:
            raise self.error(*of_validation(error, field)) from error


def of_validation(error: ValidationError, field: str) -> tuple[str, str]:
    """Returns the reason and the detail of the first problem."""
    first = error.errors(include_url=False, include_input=False)[0]
    name = ".".join(str(part) for part in first["loc"] if isinstance(part, str))
    return f"{field} is invalid", f"{name}: {first['msg']}"


def _shown(value: object) -> str:
    return "" if value is None else f"it is {str(value)[:80]!r}"
