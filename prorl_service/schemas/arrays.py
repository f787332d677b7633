"""Encodings of token arrays in JSON.

There are two, both accepted on input. *Plain* is a list of numbers. *Packed* (requested with
`Accept: application/vnd.prorl.packed+json`) is base64 of little-endian int32 or float32, and run
lengths for the arrays that are constant over long stretches: exact, smaller and faster than plain
lists. Knows nothing of what the arrays mean.
"""

import base64
from array import array
from itertools import chain, groupby, repeat
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, SerializationInfo, ValidatorFunctionWrapHandler, WrapValidator

PACKED_MEDIA_TYPE = "application/vnd.prorl.packed+json"
PACKED = {"arrays": "packed"}
"""Serialisation context that selects the packed encoding: `model_dump_json(context=PACKED)`."""

MAX_ARRAY = 2**24
"""Most items of a run-length array, which could otherwise expand without bound."""


def _is_packed(info: SerializationInfo) -> bool:
    return (info.context or {}).get("arrays") == "packed"


def _base64_array(typecode: Literal["i", "f"]) -> tuple[WrapValidator, PlainSerializer]:
    def unpack(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, dict):
            return validate(value)
        try:
            raw = base64.b64decode(value["b64"], validate=True)
            return array(typecode, raw).tolist()
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a packed array of 4-byte '{typecode}' items: {error}") from error

    def pack(values: list[Any], info: SerializationInfo) -> Any:
        if not _is_packed(info):
            return values
        return {"b64": base64.b64encode(array(typecode, values).tobytes()).decode()}

    return WrapValidator(unpack), PlainSerializer(pack)


def _run_lengths() -> tuple[WrapValidator, PlainSerializer]:
    def unpack(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, dict):
            return validate(value)
        try:
            counts = [count for _, count in value["runs"]]
            if min(counts, default=0) < 0 or sum(counts) > MAX_ARRAY:
                raise ValueError(f"a run of negative length, or more than {MAX_ARRAY} items")
            return list(chain.from_iterable(repeat(int(v), n) for v, n in value["runs"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a run-length array: {error}") from error

    def pack(values: list[int], info: SerializationInfo) -> Any:
        if not _is_packed(info):
            return values
        return {"runs": [[item, len(list(run))] for item, run in groupby(values)]}

    return WrapValidator(unpack), PlainSerializer(pack)


Int32Array = Annotated[list[int], *_base64_array("i")]
Float32Array = Annotated[list[float], *_base64_array("f")]
RunLengthArray = Annotated[list[int], *_run_lengths()]
