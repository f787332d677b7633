"""What tools of servers share: arguments that the server checks, and answers cut to a limit."""

import copy
from typing import Any

from pydantic import BaseModel, JsonValue, RootModel

MAX_OUTPUT_BYTES = 32 * 1024
"""Maximum size of one answer, as the model sees it."""


def any_arguments(schema: dict[str, Any]) -> type[BaseModel]:
    """Returns a model of any object that shows `schema`; the server checks against it."""

    class Arguments(RootModel[dict[str, JsonValue]]):
        @classmethod
        def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
            return copy.deepcopy(schema)

    return Arguments


def clipped(text: str) -> str:
    """Clips the middle, like the tools inside sandboxes."""
    whole = text.encode(errors="replace")
    if len(whole) <= MAX_OUTPUT_BYTES:
        return whole.decode()
    half = MAX_OUTPUT_BYTES // 2
    head, tail = (part.decode(errors="ignore") for part in (whole[:half], whole[-half:]))
    return f"{head}\n[... {len(whole) - 2 * half} bytes omitted ...]\n{tail}"
