"""Shelving of ended rollouts: as rows, and whole where the policy says so.

Rows are added immediately; content is large, and is copied from the journal later, rollout by
rollout. Everything runs in the caller's transactions and in the journal's thread.
"""

import sqlite3
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import orjson

from prorl_service.errors import ResultLost
from prorl_service.rollouts.journal import follower
from prorl_service.rollouts.journal.follower import FoundGroup
from prorl_service.rollouts.journal.tables import EndedRow
from prorl_service.rollouts.record import HELD_ELSEWHERE
from prorl_service.schemas import Figures, Rollout, RolloutState
from prorl_service.schemas.views import RolloutRow
from prorl_service.shelf import contents, ended_rows, search, tables, training
from prorl_service.shelf.ended_rows import ShelvedGroup
from prorl_service.shelf.policy import ShelfOptions, ShelfPolicy
from prorl_service.shelf.tables import STRIDE, ContentState

MAX_AWAITED = 4096
"""Most rollouts waiting for their content to be copied; the journal deletes nothing meanwhile."""
GROUP_SHARE = 1 / 4
"""Largest share of the shelf that one group's content may take."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A rollout whose content is to be copied."""

    row_id: int
    """Id of its row on the shelf."""
    source: FoundGroup


@dataclass(frozen=True, slots=True)
class Now:
    """The service's current policy version and model."""

    policy_version: int = 0
    model: str = ""
    """Digest of the model's tokenizer; empty while unknown."""


class Shelving:
    def __init__(self, db: sqlite3.Connection, run: str, options: ShelfOptions) -> None:
        """Raises `sqlite3.Error`."""
        self.now = Now()
        self._db = db
        self._run = run
        self._policy = ShelfPolicy(options)
        self._most_bytes = int(options.bytes * GROUP_SHARE)
        self._indexed_groups = search.groups_of(options.bytes)
        self._awaited: deque[Copy] = deque()
        self._unchecked: int | None = 0
        """Number of the journal's next group to check; None after the last."""
        self.start_over()
        training.drop_others(db, run)
        for version, count in ended_rows.firsts(db, run).items():
            self._policy.count_first(version, count)

    @property
    def is_done(self) -> bool:
        """True when nothing is left to copy or check."""
        return not self._awaited and self._unchecked is None

    def start_over(self) -> None:
        """Checks all groups of the journal again for rollouts that are missing here."""
        self._awaited.clear()
        self._unchecked = 0
        for row_id in ended_rows.awaited(self._db):
            contents.mark(self._db, row_id, ContentState.NEVER)

    def step(self, journal: sqlite3.Connection, uptime_s: float) -> None:
        """Copies one rollout, or checks one group for missing rollouts."""
        if self._awaited:
            self._copy(journal, self._awaited[0])
            self._awaited.popleft()
        elif self._unchecked is not None:
            group = None  # also where the journal is damaged: the rest is not checked
            with suppress(ResultLost):
                group = follower.next_group(journal, self._unchecked)
            if group is not None:
                self._check(journal, group, uptime_s)
            self._unchecked = None if group is None else group.number + 1

    def shelve(self, journal: sqlite3.Connection, row: EndedRow, uptime_s: float) -> None:
        """Adds the rollout's row and queues its content; does nothing if it is here already."""
        ended = ended_rows.row_of_ended(row, self._run, self.now.policy_version)
        source = None
        with suppress(ResultLost):
            source = follower.find_group(journal, row.group_id)
        # No source: the journal has already evicted the group to make room for other results.
        n = source.n if source is not None else ended.index + 1
        group = self._group(ended, row.group_size or n, uptime_s)
        if ended_rows.has_rollout(self._db, group.row_id(ended.index)):
            return
        ended_rows.add_rollout(self._db, group, ended)
        if row.owner is not None:
            return  # its front keeps the content
        if source is not None and (group.kept is not None or self._decide(group, ended)):
            self._await_content(group, source)

    def _group(self, ended: RolloutRow, n: int, uptime_s: float) -> ShelvedGroup:
        """Returns the rollout's group: a new one if the id was forgotten and submitted again."""
        found = ended_rows.find_group(self._db, ended.group_id, self._run)
        if found is not None:
            if found.created_at == ended.created_at:
                return found
            contents.remove_group(self._db, found.number)
        return ended_rows.add_group(self._db, ended, self.now.model, n, uptime_s)

    def _decide(self, group: ShelvedGroup, ended: RolloutRow) -> bool:
        has_failed = ended.state is RolloutState.FAILED and ended.error is not None
        failure = ended.error.kind if ended.error is not None and has_failed else None
        reason = self._policy.decide(ended.group_id, ended.policy_version or 0, failure)
        if reason is not None:
            ended_rows.keep(self._db, group.number, reason)
        return reason is not None

    def _await_content(self, group: ShelvedGroup, source: FoundGroup) -> None:
        """Queues the content of all the group's rollouts that are here by now."""
        for row_id in ended_rows.without_content(self._db, group.number):
            if len(self._awaited) < MAX_AWAITED:
                contents.mark(self._db, row_id, ContentState.AWAITED)
                self._awaited.append(Copy(row_id, source))

    def _copy(self, journal: sqlite3.Connection, copy: Copy) -> None:
        if not ended_rows.has_rollout(self._db, copy.row_id):
            return  # evicted or submitted again in the meantime
        number, index = divmod(copy.row_id, STRIDE)
        answer = request = None
        with suppress(ResultLost):
            answer = follower.answer_at(journal, copy.source.row_id(index))
            request = follower.request_at(journal, copy.source.number)
        is_here = answer is not None and not answer.startswith(HELD_ELSEWHERE)
        if answer is None or request is None or not is_here:
            contents.mark(self._db, copy.row_id, ContentState.NEVER)
            return
        content = tables.compressed(answer)
        if contents.bytes_of(self._db, number) + len(content) > self._most_bytes:
            contents.mark(self._db, copy.row_id, ContentState.EVICTED)
            return
        if not contents.has_request(self._db, number):
            contents.put_request(self._db, number, tables.compressed(request))
        contents.put_content(self._db, copy.row_id, content)
        search.put(self._db, copy.row_id, answer, request, self._indexed_groups)

    def _check(self, journal: sqlite3.Connection, group: FoundGroup, uptime_s: float) -> None:
        """Adds rollouts that an earlier process did not shelve before it died."""
        found = ended_rows.find_group(self._db, group.group_id, self._run)
        indices: list[int] = []
        with suppress(ResultLost):
            indices = follower.ended_in(journal, group)
        for index in indices:
            if found is None or not ended_rows.has_rollout(self._db, found.row_id(index)):
                try:
                    request = follower.request_at(journal, group.number)
                    written = follower.ended_at(journal, group.row_id(index))
                    rollout = Rollout.model_validate_json(written[0])
                except (ResultLost, ValueError):  # the shelf does without it
                    continue
                if rollout.created_at <= contents.evicted_until(self._db):
                    return  # it was here and was evicted
                assert request is not None
                self.shelve(journal, _restored(rollout, *written, request), uptime_s)
        if found is not None and found.kept is not None:
            self._await_content(found, group)


def _restored(rollout: Rollout, summary: bytes, answer: bytes, request: bytes) -> EndedRow:
    """Restores the row as written, except the time of its end, which is calculated."""
    asked, timings = orjson.loads(request), rollout.timings
    return EndedRow(
        rollout.rollout_id,
        rollout.group_id,
        rollout.attempt,
        rollout.state,
        summary,
        answer,
        rollout.figures or Figures.of(Rollout.model_validate_json(answer).trajectory),
        rollout.created_at + timings.queue_s + timings.init_s + timings.run_s + timings.eval_s,
        asked.get("owner"),
        asked.get("client") or asked.get("training"),
        asked.get("n"),
    )
