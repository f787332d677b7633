"""Labels of weights, as engines keep them and as their answers report them for each token.

A label is a policy version; if a service gave the weights, the mark of its push follows, as in
`12-9f86d081`. Two services number their pushes alike, so that the number alone does not say whose
weights an engine has. Knows no routes.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

NEVER_UPDATED = "default"
"""Label of the weights that an engine was started with."""
MARK_BYTES = 4
INT32_END = 2**31
"""Bound of ids and versions, which trajectories keep as int32."""


def label_of(version: int, push: str) -> str:
    """`push`: name of the push."""
    return f"{version}-{blake2b(push.encode(), digest_size=MARK_BYTES).hexdigest()}"


def version_of(label: str) -> int | None:
    """Returns None for weights that were never updated. Raises `ValueError`."""
    if label == NEVER_UPDATED:
        return None
    number = label.partition("-")[0]
    require(number.isdecimal(), "the version of the weights is not a number")
    version = int(number)
    require(version < INT32_END, f"policy version {version}")
    return version


def is_marked(label: str) -> bool:
    """Returns whether a service gave the weights."""
    return "-" in label


def read_label(answer: Any) -> str:
    """Reads what engines answer about their weights. Raises `ValueError`."""
    label: str = answer["weight_version"]
    version_of(label)
    return label


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


def labels_of(spans: Sequence[Any]) -> frozenset[str]:
    return frozenset(span["version"] for span in spans)


def require(condition: object, problem: str) -> None:
    """Raises `ValueError`."""
    if not condition:
        raise ValueError(problem)
