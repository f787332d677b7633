"""Groups of rollouts as one HTML file: what the page shows of them, and the page itself.

Asks the service's views as the page does; a rollout whose text is not kept is a row without text.
"""

import asyncio
from collections.abc import Sequence

import orjson

from prorl_service.errors import InvalidRequest, NotFound
from prorl_service.page.saved import saved_page
from prorl_service.schemas.views import (
    MAX_TOKENS,
    GroupQuery,
    GroupRow,
    GroupRows,
    RolloutRow,
    RolloutRows,
    RolloutText,
    TokenSlice,
)
from prorl_service.shelf.details import Details
from prorl_service.shelf.views import Views

MAX_GROUPS = 200
MAX_BYTES = 256 * 2**20
COLUMNS = ("ids", "texts", "logprobs", "mask", "versions")


async def save(views: Views, group_ids: Sequence[str], run: str | None, title: str | None) -> bytes:
    """Returns the file. Raises `NotFound` for a group that is not listed, `InvalidRequest` for
    groups of more than `MAX_BYTES`, `PageIncomplete`, `ShelfError`, `JournalError`."""
    saving = _Saving(views)
    for group_id in dict.fromkeys(group_ids):
        await saving.add(group_id, run)
    answers = saving.answers()
    name = title or f"Rollouts of {saving.groups[0].run}"
    return await asyncio.to_thread(lambda: b"".join(saved_page(name, answers)))


class _Saving:
    def __init__(self, views: Views) -> None:
        self.groups: list[GroupRow] = []
        self._views = views
        self._rollouts: list[RolloutRow] = []
        self._answers: dict[str, bytes] = {}
        self._bytes = 0

    async def add(self, group_id: str, run: str | None) -> None:
        found = await self._views.lists.groups(GroupQuery(group_id=group_id, run=run, limit=1))
        if not found.groups:
            raise NotFound(
                f"no group {group_id} is listed", hint="see /v1/groups for those that are"
            )
        [group] = found.groups
        self.groups.append(group)
        for row in await self._views.lists.siblings(group_id, group.run):
            is_kept = await self._add_content(row)
            self._rollouts.append(row.model_copy(update={"has_content": is_kept}))

    def answers(self) -> dict[str, bytes]:
        """Returns what the page asks for, by path."""
        groups = GroupRows(groups=self.groups).model_dump_json().encode()
        rollouts = RolloutRows(rollouts=self._rollouts).model_dump_json().encode()
        return {"/v1/groups": groups, "/v1/rollouts": rollouts, **self._answers}

    async def _add_content(self, row: RolloutRow) -> bool:
        details, path = self._views.details, f"/v1/rollouts/{row.rollout_id}"
        try:
            text = await details.text(row.rollout_id, row.run)
            segments = [
                await _segment(details, row, segment) for segment in range(len(text.segments))
            ]
        except NotFound:
            return False
        self._keep(f"{path}/text", await asyncio.to_thread(RolloutText.model_dump_json, text))
        self._keep(f"{path}/tokens", await asyncio.to_thread(_joined, segments))
        return True

    def _keep(self, path: str, answer: str) -> None:
        self._answers[path] = answer.encode()
        self._bytes += len(answer)
        if self._bytes > MAX_BYTES:
            limit = f"{MAX_BYTES >> 20} MiB"
            raise InvalidRequest(f"these groups hold more than {limit}", hint="choose fewer")


async def _segment(details: Details, row: RolloutRow, segment: int) -> list[TokenSlice]:
    slices: list[TokenSlice] = []
    start, length = 0, 1
    while start < length:
        part = await details.tokens(
            row.rollout_id, row.run, segment=segment, start=start, count=MAX_TOKENS
        )
        slices.append(part)
        start, length = start + MAX_TOKENS, part.length
    return slices


def _joined(segments: Sequence[Sequence[TokenSlice]]) -> str:
    """Returns the JSON of one slice a segment, which is all of it."""
    return orjson.dumps([_whole(slices) for slices in segments]).decode()


def _whole(slices: Sequence[TokenSlice]) -> dict[str, object]:
    columns = {name: [one for part in slices for one in getattr(part, name)] for name in COLUMNS}
    partial = [part.start + at for part in slices for at in part.partial]
    return {**slices[0].model_dump(mode="json"), **columns, "partial": partial}
