"""Which groups the shelf keeps whole, and how much it keeps. Pure but for its counts.

Groups are kept or skipped as a whole, so that siblings can be compared: a sample by their ids
alone, the others as soon as one of their rollouts gives a reason.
"""

import hashlib
from collections import Counter
from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt
from pydantic.dataclasses import dataclass

from prorl_service.schemas.views import KeptFor

FAILED_ALIKE = 64
"""Failed groups kept per policy version and kind of error, so that an outage cannot fill the
shelf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfOptions:
    shelf_mb: NonNegativeFloat = 512
    """Maximum size of the shelf, which keeps ended rollouts for people, in MiB (0: no shelf)."""
    shelf_hours: NonNegativeFloat = 168
    """Hours of the service's uptime after which ended rollouts leave the shelf."""
    shelf_first: NonNegativeInt = 4
    """First groups of each policy version that the shelf keeps whole."""
    shelf_sample: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of other groups that the shelf keeps whole, chosen by their ids. Failed groups are kept
    as well."""

    @property
    def bytes(self) -> int:
        return round(self.shelf_mb * 2**20)

    @property
    def seconds(self) -> float:
        return self.shelf_hours * 3600


class ShelfPolicy:
    def __init__(self, options: ShelfOptions) -> None:
        self._first = options.shelf_first
        self._share = options.shelf_sample
        self._firsts = Counter[int]()
        """Groups kept as the first of their version, by version."""
        self._failures = Counter[tuple[int, str]]()
        """Groups kept for a failure, by version and kind of the error."""

    def count_first(self, version: int, count: int = 1) -> None:
        """Counts groups of the version that an earlier process kept."""
        self._firsts[version] += count

    def decide(self, group_id: str, version: int, failure: str | None) -> KeptFor | None:
        """Returns why to keep the group, if at all. Call it once for each ended rollout of a group
        that is not kept yet; `failure` is the kind of its error, if it failed."""
        if is_sampled(group_id, self._share):
            return KeptFor.SAMPLE
        if failure is not None and self._failures[version, failure] < FAILED_ALIKE:
            self._failures[version, failure] += 1
            return KeptFor.FAILED
        if self._firsts[version] < self._first:
            self._firsts[version] += 1
            return KeptFor.FIRST
        return None


def is_sampled(group_id: str, share: float) -> bool:
    """Depends on the id alone: a front and the services behind it keep the same groups."""
    digest = hashlib.sha256(group_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
