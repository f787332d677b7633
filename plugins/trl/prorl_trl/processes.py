"""Work that one of several training processes does for all."""

from collections.abc import Callable
from typing import Any, TypeVar

from accelerate.utils import broadcast_object_list

Value = TypeVar("Value")


def on_main(
    accelerator: Any, work: Callable[[], Value], meanwhile: Callable[[], None] = lambda: None
) -> Value:
    """Does `work` on the main process, `meanwhile` on the others; all return the value of `work` or
    raise its error."""
    value: Value | None = None
    error: Exception | None = None
    if accelerator.is_main_process:
        try:
            value = work()
        except Exception as caught:
            error = caught
    else:
        meanwhile()
    outcome = [value, f"{type(error).__name__}: {error}" if error else None]
    broadcast_object_list(outcome)
    if error is not None:
        raise error
    if outcome[1] is not None:
        raise RuntimeError(f"on the main process: {outcome[1]}")
    return outcome[0]  # type: ignore[return-value]
