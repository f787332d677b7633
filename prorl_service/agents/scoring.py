"""Scores a final answer, and says whose fault it is where that does not end."""

import logging
from collections.abc import Callable

from prorl_service.agents.base import RolloutContext
from prorl_service.errors import EvaluatorError
from prorl_service.rewards.pool import ScoringAborted

NEVER_HOSTILE = "0"
"""An answer that any gold answer can be compared with: where that fails, the gold is to blame."""

log = logging.getLogger(__name__)


async def score_answer(
    rollout: RolloutContext, scorer: Callable[[str, str], float], answer: str, gold: str
) -> tuple[float, bool]:
    """Its score, and whether scoring it had to be stopped: then it is wrong.

    Raises `EvaluatorError` where it is not the answer's fault: the gold answer cannot be read, or
    cannot be compared with anything in time.
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
