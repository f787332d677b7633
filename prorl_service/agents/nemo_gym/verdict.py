"""A NeMo Gym server's verdict as reward, components and report. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from prorl_service.agents.base import Verdict
from prorl_service.errors import EvaluatorError
from prorl_service.schemas.numbers import MAX_SCORE, is_score, shown

REWARD = "reward"
NO_FIGURES = ("responses_create_params", "response", REWARD, "mask_sample")
"""Fields of each verdict that are the request's, or that have been looked at."""
MAX_COMPONENTS = 64
MAX_DETAILS_BYTES = 64 << 10


def verdict_of(answer: Mapping[str, Any], row: Mapping[str, Any], *, server: str) -> Verdict:
    """Keeps every number that the server adds to the row and that can be a component. Raises
    `EvaluatorError` for a reward that is no score."""
    reward = answer.get(REWARD)
    if not is_score(reward):
        raise EvaluatorError(
            f"NeMo Gym server {server!r} returned an unusable reward: {shown(reward)} is no number "
            f"within {MAX_SCORE:.0f}"
        )
    added = {
        name: value
        for name, value in answer.items()
        if name not in NO_FIGURES and value is not None and row.get(name) != value
    }
    found = _numbers(added)
    components = dict(list(found.items())[:MAX_COMPONENTS])
    report: dict[str, JsonValue] = {
        "server": server,
        "verdict": _details(added),
        "left_out": len(found) - len(components),
    }
    return Verdict(float(reward), components, report)


def _numbers(fields: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Returns the numbers, those of objects under dotted names. Lists, such as rewards of single
    steps, are in the report: their length differs from rollout to rollout."""
    numbers: dict[str, float] = {}
    for name, value in fields.items():
        if is_score(value):
            numbers[prefix + name] = float(value)
        elif isinstance(value, dict):
            inner = "" if name == "reward_components" else f"{prefix}{name}."
            numbers |= _numbers(value, inner)
    return numbers


def _details(added: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that fit, the shortest first: a verdict may hold whole documents."""
    sized = sorted((len(json.dumps(value).encode()), name) for name, value in added.items())
    details, left = {}, MAX_DETAILS_BYTES
    for size, name in sized:
        left -= size
        if left < 0:
            break
        details[name] = added[name]
    return details
