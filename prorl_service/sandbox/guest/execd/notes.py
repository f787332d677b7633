"""Notes to the model: lines in brackets at the end of a tool's output. Both ends of the connection
use them.
"""

from collections.abc import Sequence

TIMED_OUT = "timed out"
CANCELLED = "cancelled"


def with_notes(text: str, notes: Sequence[str]) -> str:
    """Returns the output, followed by one line for each note."""
    lines = [f"[{note}]" for note in notes]
    if lines and text:
        lines.insert(0, text.rstrip("\n"))
    return "\n".join(lines) if lines else text


def stop_note(reason: str, timeout_s: float, *, awaited: str = "") -> str:
    """Says why a call was stopped. `awaited` is what a call that had not started waited for."""
    note = f"{reason} after {timeout_s:g} s" if reason == TIMED_OUT else reason
    return f"{note}, before {awaited} was free" if awaited else note
