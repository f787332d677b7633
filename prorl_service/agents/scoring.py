"""Scoring of a final answer, with the blame for scoring that does not end."""

import logging
from collections.abc import Callable

from prorl_service.agents.base import RolloutContext
from prorl_service.errors import EvaluatorError
from prorl_service.rewards.pool import ScoringAborted

NEVER_HOSTILE = "0"
"""Answer to compare with any gold answer: where that fails, the gold answer is to blame."""

log = logging.getLogger(__name__)


async def score_answer(
    rollout: RolloutContext, scorer: Callable[[str, str], float], answer: str, gold: str
) -> tuple[float, bool]:
    """Returns the answer's score, and whether scoring was stopped, in which case it is wrong.

    Raises `EvaluatorError` if the answer is not to blame: the gold answer cannot be read, or cannot
    be compared with any answer in time.
    """
    try:
        return await rollout.score(scorer, answer, gold), False
    except ScoringAborted as error:
        log.info("%s: the answer cannot be scored: %s", rollout.rollout_id, error)
    try:
        await rollout.score(scorer, NEVER_HOSTILE, gold)
    except ScoringAborted as error:
        raise EvaluatorError(f"no answer can be compared with {gold!r:.200}: {error}") from error
    return 0.0, True
