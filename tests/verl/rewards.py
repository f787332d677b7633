"""A reward that random text earns in part, for verl's own reward loop. Loaded by path: no imports
but the standard library."""

from typing import Any


def lower_case(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> float:
    """Share of lower-case letters."""
    return sum(letter.islower() for letter in solution_str) / max(1, len(solution_str))
