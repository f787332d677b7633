"""Checks of options against their annotations: a misspelt one would train wrongly in silence."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Makes `function` raise `ValueError` for an argument that its annotation excludes; the message
    lists what is allowed."""
    signature = inspect.signature(function)

    @wraps(function)
    def check_and_call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        given = signature.bind(*args, **kwargs)
        hints = get_type_hints(function, include_extras=True)
        for name, value in given.arguments.items():
            if name in hints:
                given.arguments[name] = _validated(name, value, hints[name])
        return function(*given.args, **given.kwargs)

    return check_and_call


def _validated(name: str, value: Any, annotation: Any) -> Any:
    try:
        return TypeAdapter(annotation).validate_python(value, strict=True)
    except ValidationError as error:
        problems = dict.fromkeys(problem["msg"] for problem in error.errors())
        raise ValueError(f"{name}={value!r}: {'; '.join(problems)}") from None
