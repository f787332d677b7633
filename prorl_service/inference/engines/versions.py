"""Versions of weights, as engines label them and as their answers report them for each token.

vLLM and SGLang do so alike. Knows no routes.
"""

from collections.abc import Sequence
from typing import Any

from prorl_service.inference.engines.base import INT32_END, require

NEVER_UPDATED = "default"
"""Label of the weights that an engine was started with."""


def version_of(label: str) -> int | None:
    """Returns None for weights that were never updated. Raises `ValueError`."""
    if label == NEVER_UPDATED:
        return None
    require(label.isdecimal(), "the version of the weights is not a number")
    version = int(label)
    require(version < INT32_END, f"policy version {version}")
    return version


def expanded(spans: Sequence[Any], length: int) -> list[int]:
    """Returns the version of every output token, from spans [start, end) that must leave no gap.
    Raises `ValueError`."""
    versions: list[int] = []
    for span in spans:
        start, end = span["start"], span["end"]
        require(start == len(versions) and start < end <= length, f"weight_versions {spans}")
        versions += [version_of(span["version"]) or 0] * (end - start)
    require(len(versions) == length, f"weight_versions {spans} for {length} ids")
    return versions
