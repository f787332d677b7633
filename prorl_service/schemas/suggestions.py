"""The known name nearest to an unknown one, for messages. Refuses nothing itself."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns "did you mean ...?"; "" if no known name is like it."""
    found = get_close_matches(name, [*known], n=1)
    return f"did you mean {found[0]}?" if found else ""


def nearest_fields(problems: Iterable[Mapping[str, Any]], annotation: object) -> str:
    """Returns `nearest` for each field that a model does not have.

    `problems` are those of pydantic, with places that begin in a value of type `annotation`.
    """
    unknown = (one["loc"] for one in problems if one["type"] == "extra_forbidden")
    found = (nearest(str(place[-1]), _fields(annotation, place[:-1])) for place in unknown)
    return " ".join(filter(None, found))


def _fields(annotation: object, place: Iterable[str | int]) -> set[str]:
    models = set(_models(annotation))
    for part in filter(lambda one: isinstance(one, str), place):  # numbers are places in lists
        inner = [model.model_fields.get(str(part)) for model in models]
        models = {one for field in inner if field for one in _models(field.annotation)}
    return {name for model in models for name in model.model_fields}


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
