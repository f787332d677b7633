"""Agreement of a judge with people's labels of the same criteria. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from prorl_service.rewards.judge.rubric import Criterion, reward_of


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """An answer with a label, and a judge's score, of each criterion."""

    criteria: Sequence[Criterion]
    labels: Sequence[bool]
    scores: Sequence[float]


@dataclass(frozen=True, slots=True)
class Agreement:
    verdicts: int
    """Number of criteria of all answers. A score above 0.5 says that one is met."""
    accuracy: float
    """Share of verdicts that are the label."""
    kappa: float | None
    """Cohen's kappa: agreement beyond chance, at most 1; None if all labels and all verdicts are
    alike."""
    reward_difference: float
    """Mean of |reward by the scores - reward by the labels| over answers."""


def agreement_of(answers: Sequence[GradedAnswer]) -> Agreement:
    """`answers`: at least one."""
    pairs = [
        (label, score > 0.5)
        for one in answers
        for label, score in zip(one.labels, one.scores, strict=True)
    ]
    return Agreement(
        len(pairs),
        fmean(label == verdict for label, verdict in pairs),
        _kappa(pairs),
        fmean(
            abs(reward_of(one.criteria, one.scores) - reward_of(one.criteria, one.labels))
            for one in answers
        ),
    )


def _kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    observed = fmean(label == verdict for label, verdict in pairs)
    labelled, judged = (fmean(one) for one in zip(*pairs, strict=True))
    by_chance = labelled * judged + (1 - labelled) * (1 - judged)
    return None if by_chance == 1 else (observed - by_chance) / (1 - by_chance)
