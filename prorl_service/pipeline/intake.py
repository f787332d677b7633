"""From a request to rollouts in INIT's queue: checked, written down, queued; all or nothing."""

import asyncio
import time
from collections.abc import Callable, Sequence

from prorl_service.errors import Conflict, Overloaded, ProRLError
from prorl_service.pipeline.admission import Admission
from prorl_service.pipeline.journal import Journal
from prorl_service.pipeline.journal_tables import AcceptedRow, UnfinishedGroup
from prorl_service.pipeline.record import Admitted, RolloutRecord
from prorl_service.pipeline.under_way import GroupsUnderWay
from prorl_service.schemas import Group, RolloutState

MAX_RETRY_AFTER_S = 60


class Intake:
    def __init__(
        self,
        admission: Admission,
        journal: Journal,
        under_way: GroupsUnderWay,
        put: Callable[[RolloutRecord], None],
        *,
        max_unfinished: int,
    ) -> None:
        self._admission = admission
        self._journal = journal
        self._under_way = under_way
        self._put = put
        self._max_unfinished = max_unfinished
        self._started_at = time.monotonic()
        self.refusal: ProRLError | None = None
        """Raised instead of accepting anything new."""

    async def check(self, groups: Sequence[Group]) -> None:
        """Raises what `accept` would say of them."""
        await asyncio.to_thread(self._admission.check_all, list(enumerate(groups)))

    async def accept(self, groups: Sequence[Group]) -> None:
        """Nothing happens to groups that were accepted before."""
        while new := await self._unknown(groups):
            if self.refusal is not None:
                raise self.refusal
            admitted = await asyncio.to_thread(self._admission.check_all, new)
            self._check_capacity(sum(group.n for _, group in new))
            # Whoever submits may go away; what is on disk must be begun all the same.
            if await asyncio.shield(self._write(admitted)):
                return

    async def _unknown(self, groups: Sequence[Group]) -> list[tuple[int, Group]]:
        """With their places in the request. Raises `Conflict`."""
        known = await self._journal.find([group.group_id for group in groups])
        for group in groups:
            request = known.get(group.group_id)
            if request is not None and Group.model_validate_json(request) != group:
                raise Conflict(
                    f"group {group.group_id!r} was submitted before with other content",
                    hint="give every new group an id of its own",
                )
        return [(i, group) for i, group in enumerate(groups) if group.group_id not in known]

    def _check_capacity(self, added: int) -> None:
        unfinished = self._under_way.count()
        excess = unfinished + added - self._max_unfinished
        if excess > 0:
            raise Overloaded(
                f"{unfinished} rollouts are unfinished, {added} more would be too many",
                hint="submit again when some have ended",
                retry_after_s=self._seconds_to_end(excess),
            )

    def _seconds_to_end(self, count: int) -> int:
        """A guess, from how many have ended since the start."""
        seconds = max(time.monotonic() - self._started_at, 1.0)
        ended = max(self._under_way.ended_here, 1)
        return max(1, min(MAX_RETRY_AFTER_S, round(count * seconds / ended)))

    def _write(self, admitted: Sequence[Admitted]) -> "asyncio.Future[bool]":
        created_at = time.time()
        rows = [
            AcceptedRow(group.group_id, group.n, group.model_dump_json().encode(), created_at)
            for group in (one.group for one in admitted)
        ]
        written = self._journal.accept(rows)
        written.add_done_callback(lambda done: self._queue(done, admitted, created_at))
        return written

    def _queue(
        self, written: "asyncio.Future[bool]", admitted: Sequence[Admitted], created_at: float
    ) -> None:
        if not written.cancelled() and written.exception() is None and written.result():
            for one in admitted:
                for record in self._under_way.add(one, created_at):
                    self._put(record)

    def restore(self, unfinished: UnfinishedGroup) -> None:
        """Queue again what an earlier process has not ended."""
        group = Group.model_validate_json(unfinished.request)
        try:
            admitted, problem = Admitted(group, self._admission.find_agent(group, "group")), None
        except ProRLError as error:
            admitted, problem = Admitted(group, None), error.info()
        for record in self._under_way.add(
            admitted, unfinished.created_at, unfinished.attempts, unfinished.ended
        ):
            if problem is None:
                self._put(record)
            else:
                record.end(RolloutState.FAILED, problem)
