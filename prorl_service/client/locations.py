"""Where the contents of rollouts are: at the services behind a front that keeps no copies.

A front names only services that it trusts with the token, which is sent there and nowhere else:
clients follow no redirects. Makes no requests.
"""

import logging
import time

from prorl_service.client.errors import ServiceCallError
from prorl_service.client.requests import IDLE_TIMEOUT_S, Request
from prorl_service.schemas import Rollout

logger = logging.getLogger(__name__)

AVOID_S = 60.0
"""Seconds for which a location that did not answer is not tried again."""
FOLLOW_IDLE_S = min(10.0, IDLE_TIMEOUT_S)
"""Seconds of silence after which a location counts as out of reach."""


class Elsewhere(Exception):
    """The content of a rollout cannot be read where it is; the front has to send it."""

    def __init__(self, rollout: Rollout) -> None:
        super().__init__(f"{rollout.rollout_id} cannot be read at {rollout.location}")
        self.rollout_id = rollout.rollout_id


class Locations:
    def __init__(self, url: str) -> None:
        """`url`: the front's."""
        self._is_secure = url.startswith("https:")
        self._avoided: dict[str, float] = {}
        """Times until which locations are not tried."""

    def request(self, rollout: Rollout) -> Request[Rollout]:
        """Returns the request for the whole rollout. Raises `Elsewhere`."""
        location = str(rollout.location).rstrip("/")
        may_see_token = not self._is_secure or location.startswith("https:")
        if not may_see_token or time.monotonic() < self._avoided.get(location, 0):
            raise Elsewhere(rollout)
        return Request(
            "GET",
            f"{location}/v1/rollouts/{rollout.rollout_id}",
            Rollout.model_validate_json,
            params={"shelf": False},
            timeout_s=FOLLOW_IDLE_S,
        )

    def whole(self, summary: Rollout, found: Rollout) -> Rollout:
        """Returns the rollout with the content that was found. Raises `Elsewhere`."""
        if found.state is not summary.state:
            raise Elsewhere(summary)
        content = {"trajectory": found.trajectory, "report": found.report, "location": None}
        return summary.model_copy(update=content)

    def failed(self, rollout: Rollout, error: ServiceCallError) -> Elsewhere:
        """Notes that the location did not send the rollout."""
        location = str(rollout.location).rstrip("/")
        if error.http_status is None:
            self._avoided[location] = time.monotonic() + AVOID_S
        logger.warning("%s is read through the front: %s", rollout.rollout_id, error)
        return Elsewhere(rollout)
