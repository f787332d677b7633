"""Arguments of calls: strict JSON, and text whose type only the tool's schema knows. Pure."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from prorl_service.tokens.formats.base import Malformed

MAX_DEPTH = 64
"""Maximum nesting of lists and objects in a call. Later JSON readers fail at some hundreds."""

_WORDS = {"true": True, "false": False, "null": None, "none": None}
"""Constants, which templates print in Python's spelling as well as JSON's."""
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def read_json(text: str) -> Any:
    """Raises `Malformed`."""
    try:
        return checked(_DECODER.decode(text))
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise Malformed(f"the tool call is not valid JSON: {error}") from None


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """Returns the JSON value that begins at `start`, and its end. Raises `Malformed`."""
    try:
        value, stop = _DECODER.raw_decode(text, start)
        return checked(value), stop
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise Malformed(f"the tool call is not valid JSON: {error}", start) from None


def read_object(text: str, what: str) -> dict[str, Any]:
    """Raises `Malformed`."""
    value = read_json(text)
    if not isinstance(value, dict):
        raise Malformed(f"{what} must be a JSON object")
    return value


def checked(value: Any) -> Any:
    """Raises `Malformed` for values that JSON can spell but others cannot take."""
    if _is_deeper_than(MAX_DEPTH, value):
        raise _too_deep()
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Malformed("the tool call holds a lone surrogate escape") from None
    return value


def typed(text: str, schema: Mapping[str, Any] | None) -> Any:
    """Returns the value that `text` spells where the format does not quote strings.

    It is text unless the schema asks for another type that it can be read as, or, for an argument
    without a schema, unless it is JSON.
    """
    wanted = _types(schema) if isinstance(schema, Mapping) else set(_TYPES) | {"string"}
    if wanted == {"string"}:
        return text
    try:
        value = _WORDS[text.strip().lower()] if text.strip().lower() in _WORDS else read_json(text)
    except Malformed:
        return text
    is_wanted = any(_is_of(value, name) for name in wanted & set(_TYPES))
    return value if is_wanted else text


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Returns the names of the types that the schema allows; all if it names none."""
    declared = schema.get("type")
    names = set(declared) if isinstance(declared, list) else {declared} if declared else set()
    for branch in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        names |= _types(branch)
    if not names and "enum" in schema:
        names = {"string"} if all(isinstance(one, str) for one in schema["enum"]) else set()
    return names or {*_TYPES, "string"}


def _is_of(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def _too_deep() -> Malformed:
    return Malformed(f"the tool call is nested too deeply: over {MAX_DEPTH} levels")


def _is_deeper_than(levels: int, value: Any) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [child for parent in layer for child in _children(parent)]
        if not layer:
            return False
    return any(isinstance(one, dict | list) for one in layer)


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number} is too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
