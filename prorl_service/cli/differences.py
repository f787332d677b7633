"""The first difference between siblings: where rollouts of one task part ways. Pure.

Compares what was sampled and what tools answered, step by step; says nothing about which is better.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from prorl_service.schemas.views import RolloutText, TextTurn

BEFORE_CHARS = 40
AFTER_CHARS = 100
"""Characters shown before and after the place where texts part ways."""


@dataclass(frozen=True, slots=True)
class Step:
    turn: int
    """Number of the turn, from 1."""
    what: str
    """Name of the step, such as "says"."""
    text: str


@dataclass(frozen=True, slots=True)
class Variant:
    rollout_ids: tuple[str, ...]
    excerpt: str | None
    """Text around the place where they differ; None: these rollouts had ended before."""


@dataclass(frozen=True, slots=True)
class Difference:
    turn: int
    what: str
    variants: Sequence[Variant]


def first_difference(siblings: Mapping[str, Sequence[TextTurn]]) -> Difference | None:
    """Returns None if there is none. `siblings`: turns by id of the rollout."""
    ids = list(siblings)
    for steps in zip_longest(*(_steps(turns) for turns in siblings.values())):
        if len(set(steps)) > 1:
            return _difference(dict(zip(ids, steps, strict=True)))
    return None


def turns_by_id(texts: Sequence[RolloutText]) -> dict[str, Sequence[TextTurn]]:
    return {one.rollout.rollout_id: one.turns for one in texts}


def _steps(turns: Sequence[TextTurn]) -> Iterator[Step]:
    for number, turn in enumerate(turns, 1):
        if turn.given is not None:
            yield Step(number, "given", turn.given)
        yield Step(number, "says", turn.raw)
        for call in turn.tool_calls:
            if call.output is not None:
                yield Step(number, f"output of {call.name}", call.output)


def _difference(steps: Mapping[str, Step | None]) -> Difference:
    found = [step for step in steps.values() if step is not None]
    first = min(found, key=lambda step: step.turn)
    is_one_step = len({(step.turn, step.what) for step in found}) == 1
    what = first.what if is_one_step else "what comes next"
    common = _common_length([step.text for step in found]) if is_one_step else 0
    groups: dict[Step | None, list[str]] = {}
    for rollout_id, step in steps.items():
        groups.setdefault(step, []).append(rollout_id)
    variants = [
        Variant(tuple(ids), None if step is None else _excerpt(step, common, is_one_step))
        for step, ids in groups.items()
    ]
    return Difference(first.turn, what, variants)


def _common_length(texts: Sequence[str]) -> int:
    """Returns the length of the longest beginning that all have."""
    first, last = min(texts), max(texts)  # the two that part first
    for place, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return place
    return min(len(first), len(last))


def _excerpt(step: Step, common: int, is_one_step: bool) -> str:
    start = max(0, common - BEFORE_CHARS)
    stop = common + AFTER_CHARS
    text = step.text[start:stop]
    begins = "..." if start else ""
    ends = "..." if stop < len(step.text) else ""
    name = "" if is_one_step else f"{step.what}: "
    return f"{name}{begins}{text}{ends}"
