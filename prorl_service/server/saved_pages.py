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
from prorl_service.shelf.lists import Lists

MAX_GROUPS = 200
MAX_BYTES = 256 * 2**20
COLUMNS = ("ids", "texts", "logprobs", "mask", "versions")


async def save(
    lists: Lists, details: Details, group_ids: Sequence[str], run: str | None, title: str | None
) -> bytes:
    """Returns the file. Raises `NotFound` for a group that is not listed, `InvalidRequest` for
    groups of more than `MAX_BYTES`, `PageIncomplete`, `ShelfError`, `JournalError`."""
    groups: list[GroupRow] = []
    rollouts: list[RolloutRow] = []
    contents: dict[str, bytes] = {}
    size = 0
    for group_id in dict.fromkeys(group_ids):
        group = await _group(lists, group_id, run)
        groups.append(group)
        for row in await lists.siblings(group_id, group.run):
            content = await _content(details, row)
            rollouts.append(row.model_copy(update={"has_content": bool(content)}))
            contents |= content
            size += sum(map(len, content.values()))
            if size > MAX_BYTES:
                limit = f"{MAX_BYTES >> 20} MiB"
                raise InvalidRequest(f"these groups hold more than {limit}", hint="choose fewer")
    answers = {
        "/v1/groups": GroupRows(groups=groups).model_dump_json().encode(),
        "/v1/rollouts": RolloutRows(rollouts=rollouts).model_dump_json().encode(),
        **contents,
    }
    name = title or f"Rollouts of {groups[0].run}"
    return await asyncio.to_thread(lambda: b"".join(saved_page(name, answers)))


async def _group(lists: Lists, group_id: str, run: str | None) -> GroupRow:
    found = await lists.groups(GroupQuery(group_id=group_id, run=run, limit=1))
    if not found.groups:
        raise NotFound(f"no group {group_id} is listed", hint="see /v1/groups for those that are")
    return found.groups[0]


async def _content(details: Details, row: RolloutRow) -> dict[str, bytes]:
    """Returns what the page asks for of a rollout, by path; empty if its text is not kept."""
    try:
        text = await details.text(row.rollout_id, row.run)
        segments = [await _segment(details, row, number) for number in range(len(text.segments))]
    except NotFound:
        return {}
    path, dump = f"/v1/rollouts/{row.rollout_id}", RolloutText.model_dump_json
    return {
        f"{path}/text": (await asyncio.to_thread(dump, text)).encode(),
        f"{path}/tokens": await asyncio.to_thread(_joined, segments),
    }


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


def _joined(segments: Sequence[Sequence[TokenSlice]]) -> bytes:
    """Returns the JSON of one slice a segment, which is all of it."""
    return orjson.dumps([_whole(slices) for slices in segments])


def _whole(slices: Sequence[TokenSlice]) -> dict[str, object]:
    columns = {name: [one for part in slices for one in getattr(part, name)] for name in COLUMNS}
    partial = [part.start + at for part in slices for at in part.partial]
    return {**slices[0].model_dump(mode="json"), **columns, "partial": partial}
