"""Rewards that random text earns in part, for verl's own reward loop. Loaded by path, so they
import only the standard library."""

from typing import Any


def lower_case(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> float:
    """Returns the share of lower-case letters."""
    return sum(letter.islower() for letter in solution_str) / max(1, len(solution_str))


def lower_case_and_more(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any, **_: Any
) -> dict[str, float]:
    """Returns a score that no agent of the service gives; `service` is the agent's reward."""
    share = lower_case(data_source, solution_str, ground_truth)
    return {"score": 10 + share, "acc": share, "service": extra_info["prorl"]["reward"]}


def all_it_was_given(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any, **_: Any
) -> dict[str, Any]:
    given = {"data_source": data_source, "ground_truth": ground_truth, **extra_info}
    return {"score": 7.0, "given": given}


def fails(**_: Any) -> float:
    raise KeyError("no such key")


def is_nan(**_: Any) -> float:
    return float("nan")
