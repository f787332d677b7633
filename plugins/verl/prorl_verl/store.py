"""Prompts that a trainer gave out and their results, in VeRL's TransferQueue.

The protocol, per prompt: its key's status is `running`; then the rows of its sessions; only then
`finished`, or `failure` if there is nothing to train on. A sampler waits for each prompt, so one of
the two must always come.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal

import transfer_queue as tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from prorl_service.client.trainable import failure_of
from prorl_service.schemas import Group, Rollout
from prorl_verl.rows import Row
from prorl_verl.tensors import Fields, Tag, fields_of, keys_of, tag_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompt of a trainer. `uid`: its key. `global_steps`: the step that gave it out."""

    uid: str
    columns: dict[str, Any]
    group: Group
    global_steps: int
    partition: Literal["train", "val"]


@dataclass(slots=True)
class Entries:
    """Entries to put for the rollouts of a group."""

    keys: list[str] = field(default_factory=list)
    fields: list[Fields] = field(default_factory=list)
    tags: list[Tag] = field(default_factory=list)

    def add(self, prompt: Prompt, scored: Iterable[tuple[Rollout, Sequence[Row]]]) -> None:
        for rollout, rows in scored:
            self.keys += keys_of(prompt.uid, rollout.index, rows)
            self.fields += [fields_of(row, prompt.columns) for row in rows]
            self.tags += [tag_of(row, prompt.global_steps) for row in rows]

    def arguments(self) -> dict[str, Any]:
        fields = list_of_dict_to_tensordict(self.fields)
        return {"keys": self.keys, "fields": fields, "tags": self.tags}


async def put(prompt: Prompt, entries: Entries) -> None:
    """Puts the rows, if there are any, and then the status."""
    if entries.keys:
        await tq.async_kv_batch_put(partition_id=prompt.partition, **entries.arguments())
    await mark([prompt], "finished" if entries.keys else "failure")


async def mark(
    prompts: Sequence[Prompt], status: Literal["running", "finished", "failure"]
) -> None:
    for prompt in prompts:
        await tq.async_kv_put(key=prompt.uid, partition_id=prompt.partition, tag={"status": status})


def before_close(do: Callable[[], None]) -> None:
    """Calls `do` before VeRL closes the store, its only sign that training has ended; Ray ends the
    process soon after, and may leave it no time for exit handlers."""
    close = tq.close

    @wraps(close)
    def do_and_close() -> None:
        try:
            do()
        finally:
            close()

    tq.close = do_and_close


def warn_of_failures(prompt: Prompt, rollouts: Sequence[Rollout]) -> None:
    failures = [one for one in map(failure_of, rollouts) if one is not None]
    if failures:
        reasons = Counter(f"{one.kind} ({one.blame.value}): {one.message}" for one in failures)
        (most, _), *_ = reasons.most_common(1)
        logger.warning(
            "%d of %d rollouts of task %s failed, most by %s",
            len(failures),
            len(rollouts),
            prompt.group.task.task_id,
            most,
        )
