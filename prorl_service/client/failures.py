"""What becomes of a training whose rollouts fail: tried again, continued, or ended.

Pure but for waiting. `trainable` says which rollouts have failed.
"""

import logging
import time
from collections.abc import Sequence

from prorl_service.client.trainable import failure_summary
from prorl_service.errors import ProRLError
from prorl_service.schemas import ErrorInfo

logger = logging.getLogger(__name__)

RETRY_DELAY_S = 5.0
MAX_LOST_CALLS = 3
"""Maximum consecutive calls, each retried to its deadline, without a usable rollout."""

Failures = Sequence[ErrorInfo | None]
"""Why each rollout of a call cannot be used; None for one that can."""


class RolloutsFailed(ProRLError):
    """No rollout of a call can be trained on, or one failed and none may."""


class LostCalls:
    """Judge of a training's calls for rollouts. `raises`: a failed rollout ends training."""

    def __init__(self, *, raises: bool = False) -> None:
        self._raises = raises
        self._lost = 0

    def is_to_retry(self, failures: Failures, deadline: float) -> bool:
        """Returns whether all rollouts failed, some for a temporary reason, such as an engine that
        is down, and waits before the retry: steps without rollouts would move the learning rate
        schedule, and with it the policy. Raises `RolloutsFailed` if all failed for good."""
        failed = [one for one in failures if one is not None]
        if not failed:
            return False
        summary = failure_summary(failures)
        can_pass = any(one.retryable for one in failed)
        is_lost = len(failed) == len(failures)
        if self._raises or (is_lost and not can_pass):
            raise RolloutsFailed(summary)
        logger.warning(summary)
        if not is_lost or time.monotonic() + RETRY_DELAY_S > deadline:
            return False
        time.sleep(RETRY_DELAY_S)
        return True

    def count(self, failures: Failures) -> None:
        """Takes a call that is not retried any more. Raises `RolloutsFailed`."""
        self._lost = 0 if None in failures else self._lost + 1
        if self._lost >= MAX_LOST_CALLS:
            raise RolloutsFailed(failure_summary(failures))


def wait_for_restart(deadline: float) -> None:
    """Waits for a service that has forgotten its rollouts. Raises `RolloutsFailed` if it is too
    late."""
    forgotten = "the service no longer knows the rollouts it was given: was it restarted?"
    if time.monotonic() + RETRY_DELAY_S > deadline:
        raise RolloutsFailed(forgotten, hint="`url` must always lead to the same service")
    logger.warning("%s Resubmitting missing rollouts.", forgotten)
    time.sleep(RETRY_DELAY_S)
