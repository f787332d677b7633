"""One rollout for people, wherever it is: running here or elsewhere, in the journal, on the shelf.

Slow work (reading, an agent's own code, decoding tokens) is done in threads.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from prorl_service.agents.base import Prompt
from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.errors import (
    InvalidRequest,
    NotFound,
    ProRLError,
    ResultLost,
    ShelfError,
    problems_of,
)
from prorl_service.inference.pool import BackendPool
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.rollouts.record import EndedRollout, RolloutRecord
from prorl_service.schemas import Figures, Group, Rollout, Start
from prorl_service.schemas.views import RolloutRow, RolloutText, TokenSlice
from prorl_service.shelf import queries
from prorl_service.shelf.lists import Lists
from prorl_service.shelf.queries import ShelvedRollout
from prorl_service.shelf.rows import row_of
from prorl_service.shelf.tables import ContentState
from prorl_service.shelf.texts import siblings_of, text_of, tokens_of
from prorl_service.tokens.chat import ChatFormat


@dataclass(frozen=True, slots=True)
class RolloutSource:
    """A rollout as found, before it is laid out."""

    rollout: Rollout
    group: Group
    run: str
    model: str | None = None
    """Digest of its model's tokenizer; None for the model in use."""


class Details:
    def __init__(
        self,
        run: str,
        executor: RolloutExecutor,
        journal: Journal,
        backends: BackendPool,
        lists: Lists,
    ) -> None:
        self._run = run
        self._executor = executor
        self._journal = journal
        self._backends = backends
        self._lists = lists

    async def ended(self, rollout_id: str, run: str | None = None) -> EndedRollout:
        """Returns a rollout that the journal no longer has. Raises `ShelfError`, and `NotFound`,
        which says why there is none."""
        return EndedRollout(_packed(await self._on_shelf(rollout_id, run)))

    async def text(self, rollout_id: str, run: str | None = None) -> RolloutText:
        """Raises `NotFound`, `ShelfError`, `JournalError`."""
        if (client := self._elsewhere(rollout_id, run)) is not None:
            return await self._text_elsewhere(rollout_id, client)
        source = await self._source(rollout_id, run)
        siblings = await self._siblings(source)
        row = next(one for one in siblings if one.index == source.rollout.index)
        chat = self._chat(source.model)
        return await asyncio.to_thread(self._lay_out, source, row, siblings, chat)

    async def tokens(
        self, rollout_id: str, run: str | None, *, segment: int, start: int, count: int
    ) -> TokenSlice:
        """Raises what `text` raises, and `InvalidRequest`."""
        if (client := self._elsewhere(rollout_id, run)) is not None:
            return await client.tokens(rollout_id, segment=segment, start=start, n=count)
        source = await self._source(rollout_id, run)
        chat, trajectory = self._chat(source.model), source.rollout.trajectory
        return await asyncio.to_thread(
            lambda: tokens_of(
                rollout_id, trajectory, chat, segment=segment, start=start, count=count
            )
        )

    async def find_starts(self, groups: Iterable[Group]) -> None:
        """Gives groups that begin with turns of a named rollout its trajectory, if it is here.
        Raises `InvalidRequest` for turns that it does not have."""
        for place, group in enumerate(groups):
            start = group.start
            if start is None or start.rollout_id is None or start.trajectory is not None:
                continue
            with suppress(NotFound):
                found = (await self._source(start.rollout_id, None)).rollout.trajectory
                content = {**dict(start), "trajectory": found}
                try:
                    group.start = Start.model_validate(content)
                except ValidationError as error:
                    where = f"groups.{place}.start"
                    raise InvalidRequest.of_field(where, problems_of(error)) from None

    # --- where it is ----------------------------------------------------------------------------

    async def _source(self, rollout_id: str, run: str | None) -> RolloutSource:
        if run in (None, self._run):
            if (record := self._executor.inflight.peek(rollout_id)) is not None:
                return await self._running(record)
            found = await self._journal.read(tables.answer, rollout_id)
            if found is not None:
                return await self._in_journal(EndedRollout.stored(*found))
        shelved = await self._on_shelf(rollout_id, run)
        packed = _packed(shelved)
        rollout = await asyncio.to_thread(Rollout.model_validate_json, packed)
        return RolloutSource(rollout, shelved.group(), shelved.run, shelved.model)

    async def _running(self, record: RolloutRecord) -> RolloutSource:
        rollout, progress = record.to_wire(), self._executor.progress(record)
        if progress is not None and progress.turns:
            now = progress.copy()
            rollout.trajectory = await asyncio.to_thread(now.trajectory)
        return RolloutSource(rollout, record.group, self._run)

    async def _in_journal(self, ended: EndedRollout) -> RolloutSource:
        rollout = await asyncio.to_thread(ended.to_wire)
        requests = await self._journal.read(tables.find, [rollout.group_id])
        if rollout.group_id not in requests:  # acknowledged a moment ago
            return await self._source(rollout.rollout_id, self._run)
        return RolloutSource(
            rollout, Group.model_validate_json(requests[rollout.group_id]), self._run
        )

    async def _on_shelf(self, rollout_id: str, run: str | None) -> ShelvedRollout:
        """Raises `NotFound` for a rollout that the shelf does not keep whole."""
        found = None
        if self._lists.shelf is not None:
            found = await self._lists.shelf.read(
                lambda db: queries.find(db, rollout_id, run, self._run)
            )
        if found is None:
            raise _unknown(rollout_id, self._lists.notice)
        if found.packed is None or found.request is None:
            raise _not_whole(rollout_id, found)
        return found

    # --- what belongs to it ---------------------------------------------------------------------

    async def _siblings(self, source: RolloutSource) -> list[RolloutRow]:
        """Returns the known rollouts of its group, itself included."""
        rows = {
            row.index: row
            for row in await self._lists.siblings(source.group.group_id, source.run)
            if row.created_at == source.rollout.created_at
        }
        if source.run == self._run:
            missing = [i for i in range(source.group.n) if i not in rows]
            ids = [source.group.rollout_id(index) for index in missing]
            summaries = await self._journal.read(tables.summaries, ids) if ids else {}
            for summary in summaries.values():
                if isinstance(summary, ResultLost):
                    continue
                rollout = Rollout.model_validate_json(summary)
                rows[rollout.index] = self._row(rollout, None)
        own = source.rollout
        if own.index not in rows:
            rows[own.index] = self._row(own, Figures.of(own.trajectory), source.run)
        return [rows[index] for index in sorted(rows)]

    def _row(self, rollout: Rollout, figures: Figures | None, run: str | None = None) -> RolloutRow:
        """Makes the row of a rollout that the shelf does not list."""
        version = rollout.newest_policy_version
        run = run or self._run
        return row_of(rollout, figures, run=run, has_content=True, policy_version=version)

    def _chat(self, model: str | None) -> ChatFormat | None:
        """Returns the format of the model in use, or None if the rollout is of another model."""
        current = self._backends.model.current
        if current is None or model not in (None, current.tokenizer_digest):
            return None
        return current.chat

    def _lay_out(
        self,
        source: RolloutSource,
        row: RolloutRow,
        siblings: list[RolloutRow],
        chat: ChatFormat | None,
    ) -> RolloutText:
        prompt, notice = self._prompt(source.group)
        return text_of(source.rollout, source.group, row, siblings, prompt, chat, notice)

    def _prompt(self, group: Group) -> tuple[Prompt, str]:
        """Returns the prompt that the agent makes today, and a notice if it makes none."""
        try:
            return self._executor.validator.prompt(group), ""
        except (ProRLError, ValidationError) as error:
            problem = str(error).splitlines()[0]
            notice = f"the agent's own messages and tools are not shown: {problem}"
            return Prompt(group.task.messages), notice

    # --- at another service ---------------------------------------------------------------------

    def _elsewhere(self, rollout_id: str, run: str | None) -> AsyncRolloutClient | None:
        record = self._executor.inflight.peek(rollout_id) if run in (None, self._run) else None
        return None if record is None else self._executor.elsewhere(record)

    async def _text_elsewhere(self, rollout_id: str, client: AsyncRolloutClient) -> RolloutText:
        """Fetches the text from the service that runs it; row and siblings come from here."""
        try:
            text = await client.text(rollout_id)
        except ServiceCallError as error:
            raise ShelfError(
                f"the service that runs {rollout_id} did not send its text: {error.error.message}",
                hint="try again; the lists here have its row",
            ) from error
        record = self._executor.inflight.peek(rollout_id)
        if record is None:  # it ended in the meantime
            return await self.text(rollout_id, self._run)
        rollout = record.to_wire()
        siblings = await self._siblings(RolloutSource(rollout, record.group, self._run))
        own = self._lists.live.row(record).model_copy(
            update={"state": text.rollout.state, **_sampled(text.rollout)}
        )
        rows = [own if one.index == rollout.index else one for one in siblings]
        return text.model_copy(update={"rollout": own, "siblings": siblings_of(record.group, rows)})


def _sampled(row: RolloutRow) -> dict[str, object]:
    """Returns the fields that only the service that runs it knows."""
    names = ("turns", "sampled_tokens", "segments", "model_s", "tool_s")
    others = ("oldest_policy_version", "newest_policy_version", "activity")
    return {name: getattr(row, name) for name in (*names, *others)}


def _packed(found: ShelvedRollout) -> bytes:
    assert found.packed is not None
    return found.packed


def _unknown(rollout_id: str, notice: str) -> NotFound:
    hint = "it was never submitted, or ended so long ago that not even the shelf lists it"
    return NotFound(f"there is no rollout {rollout_id!r}", hint=f"{hint}; {notice}".rstrip("; "))


_REASONS = {
    ContentState.NEVER: (
        "the shelf kept only its row",
        "it keeps failed groups, the first of each policy version and a sample whole "
        "(--shelf-sample 1: all); groups from a front are kept there",
    ),
    ContentState.EVICTED: (
        "its content was evicted from the shelf",
        "a larger --shelf-mb keeps more",
    ),
}


def _not_whole(rollout_id: str, found: ShelvedRollout) -> ProRLError:
    if found.content not in _REASONS:
        return ShelfError(f"{rollout_id} is being copied to the shelf", hint="try again")
    reason, hint = _REASONS[found.content]
    return NotFound(
        f"rollout {rollout_id!r} was acknowledged, and {reason}; its row is listed", hint=hint
    )
