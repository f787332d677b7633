"""Admission of a request's groups: checked, written down and queued, all or nothing."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from prorl_service.errors import Conflict, InvalidRequest, Overloaded, ProRLError
from prorl_service.rollouts.inflight import InflightGroups
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.rollouts.journal.tables import AcceptedRow, UnfinishedGroup
from prorl_service.rollouts.record import Admitted, RolloutRecord
from prorl_service.rollouts.validation import Validator
from prorl_service.schemas import Group, Invalid, RolloutState
from prorl_service.schemas.arrays import PACKED
from prorl_service.utils.tasks import TaskOwner

MAX_RETRY_AFTER_S = 60
SLICE = 256
"""Rollouts that are queued or described between pauses: thousands would block the event loop for
half a second."""


class Admission:
    def __init__(
        self,
        validator: Validator,
        journal: Journal,
        inflight: InflightGroups,
        put: Callable[[RolloutRecord], None],
        background: TaskOwner,
        *,
        max_unfinished: int,
        max_unfinished_per_client: int | None = None,
    ) -> None:
        self._validator = validator
        self._journal = journal
        self._inflight = inflight
        self._put = put
        self._background = background
        self._max_unfinished = max_unfinished
        self._max_per_client = max_unfinished_per_client
        self._started_at = time.monotonic()
        self._being_accepted = Counter[str | None]()
        """Number of rollouts that passed all checks and are not queued yet, by client."""
        self._writing: dict[str, asyncio.Task[bool]] = {}
        """Submissions that are being written or queued, keyed by each of their groups."""
        self.refusal: ProRLError | None = None
        """Error to raise instead of accepting anything new."""

    async def accept(self, groups: Sequence[Group], invalid: Invalid = "refuse") -> None:
        """Accepts groups; leaves those that were accepted before as they are."""
        while new := await self._unknown(groups):
            if self.refusal is not None:
                raise self.refusal
            for _, group in new:
                group.training = group.training or self._validator.backends.owner.key
                self._validator.check_training(group)
            admitted = await asyncio.to_thread(self._validator.check_all, new, invalid)
            self._reserve([group for _, group in new])
            # The client may go away; groups on disk must be begun all the same.
            writing = self._background.run_once(self._write(admitted), name="accept groups")
            for one in admitted:
                self._writing.setdefault(one.group.group_id, writing)
            writing.add_done_callback(partial(self._forget_writing, admitted))
            if await asyncio.shield(writing):
                break
        for known in groups:  # another submission that wrote them may still be queueing them
            if known.group_id in self._writing:
                await asyncio.wait([self._writing[known.group_id]])

    async def _unknown(self, groups: Sequence[Group]) -> list[tuple[int, Group]]:
        """Returns unknown groups with their places in the request. Raises `Conflict`."""
        known = await self._journal.read(tables.find, [group.group_id for group in groups])
        for group in groups:
            request = known.get(group.group_id)
            if request is not None and not group.is_same_as(Group.model_validate_json(request)):
                raise Conflict(
                    f"group {group.group_id!r} was submitted before with other content",
                    hint="give every new group an id of its own",
                )
        return [(i, group) for i, group in enumerate(groups) if group.group_id not in known]

    def _reserve(self, groups: Sequence[Group]) -> None:
        """Raises `InvalidRequest` and `Overloaded` if there, or of one client, would be too many
        unfinished rollouts."""
        added = Counter[str | None]()
        for group in groups:
            added[group.submitter] += len(group.indices)
        unfinished = self._inflight.count() + self._being_accepted.total()
        self._check_room("", unfinished, added.total(), self._max_unfinished, "--max-unfinished")
        if self._max_per_client is not None:
            for client, count in added.items():
                unfinished = self._inflight.count_of(client) + self._being_accepted[client]
                who = f" of {client or 'clients without a name'}"
                self._check_room(
                    who, unfinished, count, self._max_per_client, "--max-unfinished-per-client"
                )
        self._being_accepted += added

    def _check_room(self, who: str, unfinished: int, added: int, most: int, option: str) -> None:
        """Raises `InvalidRequest` for what can never be taken, and `Overloaded`."""
        if added > most:
            raise InvalidRequest(
                f"{added} rollouts are more than may be unfinished{who} at once, {most}",
                hint=f"submit fewer at once, or start the service with a larger {option}",
            )
        excess = unfinished + added - most
        if excess > 0:
            raise Overloaded(
                f"{unfinished} rollouts{who} are unfinished, with {added} more the limit of {most}"
                " would be passed",
                hint="submit again when some have ended",
                retry_after_s=self._seconds_to_end(excess),
            )

    def _seconds_to_end(self, count: int) -> int:
        """Estimates the time from how many have ended since the start."""
        seconds = max(time.monotonic() - self._started_at, 1.0)
        ended = max(self._inflight.ends.total(), 1)
        return max(1, min(MAX_RETRY_AFTER_S, round(count * seconds / ended)))

    async def _write(self, admitted: Sequence[Admitted]) -> bool:
        """Returns whether they are queued; if not, another submission has written some of them."""
        created_at = time.time()
        rows = [
            AcceptedRow(
                group.group_id,
                len(group.indices),
                group.model_dump_json(context=PACKED).encode(),
                created_at,
            )
            for group in (one.group for one in admitted)
        ]
        is_written = False
        try:
            is_written = await self._journal.accept(rows)
        finally:
            if not is_written:
                for one in admitted:
                    self._being_accepted[one.group.submitter] -= len(one.group.indices)
        if is_written:
            await self._queue(admitted, created_at)
        return is_written

    def _forget_writing(self, admitted: Sequence[Admitted], writing: "asyncio.Task[bool]") -> None:
        for one in admitted:
            if self._writing.get(one.group.group_id) is writing:
                del self._writing[one.group.group_id]

    async def _queue(self, admitted: Sequence[Admitted], created_at: float) -> None:
        in_slice = 0
        for one in admitted:
            records = self._inflight.add(one, created_at)
            for record in records:
                self._begin(record)
            self._being_accepted[one.group.submitter] -= len(records)
            in_slice += len(records)
            if in_slice >= SLICE:
                in_slice = 0
                await asyncio.sleep(0)

    def _begin(self, record: RolloutRecord) -> None:
        problem = record.admitted.problem
        try:
            self._validator.check_training(record.group)  # the policy may have changed hands since
        except ProRLError as error:
            problem = error.info()
        if problem is None:
            self._put(record)
        else:
            record.end(RolloutState.FAILED, problem)

    def restore(self, unfinished: UnfinishedGroup) -> None:
        """Queues again the rollouts that an earlier process has not ended. Raises `JournalError`
        for a request that is damaged."""
        group = self._journal.parsed(lambda: Group.model_validate_json(unfinished.request))
        admitted = Admitted(group)
        try:
            self._validator.find_agent(group)
        except ProRLError as error:
            admitted.problem = error.info()
        for record in self._inflight.add(
            admitted,
            unfinished.created_at,
            unfinished.attempts,
            unfinished.saved_attempts,
            unfinished.ended,
        ):
            self._begin(record)
