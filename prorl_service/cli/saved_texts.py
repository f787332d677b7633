"""Rollouts of files and journals as people read them: what `prorl view` shows without a service.

Needs no model: where none is named, replies are shown as they were sampled.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from prorl_service.agents.base import Prompt
from prorl_service.exports.record import Record
from prorl_service.exports.sources import records
from prorl_service.schemas import Figures, Group, Message, Task
from prorl_service.schemas.views import RolloutRow, RolloutText
from prorl_service.shelf.rows import Standing, row_of
from prorl_service.shelf.texts import Whole, text_of
from prorl_service.tokens.chat import ChatFormat

UNKNOWN = "(the task is not saved with this rollout)"


def texts(sources: Sequence[str], chat: ChatFormat | None) -> Iterator[RolloutText]:
    """Yields rollouts in their order, siblings together. Raises `ProRLError`."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records(sources):
        groups[record.rollout.group_id].append(record)
    for group in groups.values():
        yield from _group(group, chat)


def _group(found: Sequence[Record], chat: ChatFormat | None) -> Iterator[RolloutText]:
    first = found[0].rollout
    task = found[0].task or Task(
        task_id=first.task_id,
        agent=first.agent,
        messages=[Message(role="user", content=UNKNOWN)],
    )
    size = 1 + max(one.rollout.index for one in found)
    group = Group(group_id=first.group_id, task=task, n=size)
    rows = [_row(record) for record in found]
    for record, row in zip(found, rows, strict=True):
        prompt = Prompt(task.messages)
        yield text_of(Whole(record.rollout, group, row, rows, prompt, chat))


def _row(record: Record) -> RolloutRow:
    rollout = record.rollout
    figures = Figures.of(rollout.trajectory)
    standing = Standing(run="", has_content=True, policy_version=rollout.newest_policy_version)
    return row_of(rollout, figures, standing)
