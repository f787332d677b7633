"""Rubrics: criteria with weights that an answer is graded by, their numbering for a judge, and what
its reply says of each. Pure.

The judge never sees weights: it says which criteria are met, whether that is good or bad.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from prorl_service.net.chat_model import NoReply

ANSWERED = "answered"
"""Name of the component that no criterion can have."""
Met = tuple[bool, ...]
"""Whether each criterion is met, by one judge."""

_LINE = re.compile(r"CRITERION (\d{1,3}): (MET|NOT MET)")


class Criterion(BaseModel):
    """What a judge says is met or not met, and what that is worth."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)

    criterion: str = Field(
        min_length=1,
        max_length=2000,
        description="What may be true of an answer, such as 'It names both causes.'",
    )
    weight: float = Field(
        1.0,
        ge=-100,
        le=100,
        description="Weight in the reward; that of something bad is negative. Magnitudes are from "
        "0.01 to 100.",
    )
    name: str = Field(
        "",
        pattern=r"^[\w.-]{0,60}$",
        description="Name of its component of the reward; by default `criterion_1` and so on.",
    )


def _checked(criteria: list[Criterion]) -> list[Criterion]:
    """Gives each a name. Raises `ValueError`."""
    named = [
        one.model_copy(update={"name": one.name or f"criterion_{number}"})
        for number, one in enumerate(criteria, 1)
    ]
    name, count = Counter([ANSWERED, *(one.name for one in named)]).most_common(1)[0]
    if count > 1:
        raise ValueError(f"the name {name!r} is taken")
    if any(abs(one.weight) < 0.01 for one in named):
        raise ValueError("a weight of less than 0.01 weighs nothing: leave the criterion out")
    if not any(one.weight > 0 for one in named):
        raise ValueError("give at least one criterion a positive weight")
    return named


Rubric = Annotated[
    list[Criterion],
    Field(min_length=1, max_length=64, description="Criteria with weights."),
    AfterValidator(_checked),
]


def reward_of(criteria: Sequence[Criterion], scores: Iterable[float]) -> float:
    """Returns the weighted sum of scores from 0 to 1, as a share of all positive weights: at most
    1, and below 0 only by criteria of negative weight."""
    earned = sum(one.weight * score for one, score in zip(criteria, scores, strict=True))
    return earned / sum(one.weight for one in criteria if one.weight > 0)


def scores_of(verdicts: Iterable[Met]) -> list[float]:
    """Returns the share of judges that find each criterion met."""
    return [fmean(one) for one in zip(*verdicts, strict=True)]


def numbered(criteria: Sequence[Criterion]) -> str:
    return "\n".join(f"{number}. {one.criterion}" for number, one in enumerate(criteria, 1))


def read(reply: str, count: int) -> Met:
    """Reads the last `count` lines, which must hold the only verdicts, in order. Raises
    `NoReply`."""
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    found = [match for match in map(_LINE.fullmatch, lines) if match]
    last = [match for match in map(_LINE.fullmatch, lines[-count:]) if match]
    numbers = [int(match[1]) for match in last]
    if len(found) != count or numbers != list(range(1, count + 1)):
        raise NoReply(f"its reply does not end with one verdict on each of {count} criteria")
    return tuple(match[2] == "MET" for match in last)


def kept(met: Met) -> str:
    """Returns a verdict as the cache keeps it: the inverse of `of_kept`."""
    return "".join(str(int(one)) for one in met)


def of_kept(text: str) -> Met:
    return tuple(one == "1" for one in text)
