"""Groups of engines that receive a trainer's weights by NCCL, as vLLM and SGLang do it.

The trainer is rank 0 and opens the group; the workers of all engines follow. NCCL knows nothing of
processes that come and go: when an engine has joined, left or restarted, a new group is needed.
Sends no weights: `transfer` has the engines receive them.
"""

import asyncio
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from prorl_service.errors import Conflict, InvalidRequest
from prorl_service.inference.member import PoolMember
from prorl_service.inference.sources import Broadcast


class GroupGone(InvalidRequest):
    """The NCCL group is not that of the engines that are up."""

    answer_status = 410


@dataclass(frozen=True, slots=True)
class NcclGroup:
    processes: dict[str, str]
    """Identifiers of the engines' processes, keyed by URL."""
    group_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    async def is_of(self, members: Collection[PoolMember]) -> bool:
        """Returns whether the group is that of these engines, without a restart since."""
        return self.processes == await _processes(members)

    def broadcast(self, manifest: Mapping[str, Any]) -> Broadcast:
        return Broadcast(manifest, asyncio.Barrier(len(self.processes)))


def protocol_of(members: Collection[PoolMember]) -> str:
    """Returns the kind of the engines, by which a trainer broadcasts; "" for several."""
    kinds = {member.backend.engine.kind for member in members}
    return kinds.pop() if len(kinds) == 1 else ""


async def workers_of(members: Collection[PoolMember]) -> int:
    """Counts the workers of engines that take weights by NCCL; 0 if one engine does not, or if they
    are of several kinds."""
    counts = [
        (await member.backend.intake(member.info)).workers for member in members if member.info
    ]
    return sum(counts) if all(counts) and protocol_of(members) else 0


async def open_group(
    members: Collection[PoolMember], init_info: Mapping[str, Any], *, timeout_s: float
) -> NcclGroup:
    """Has the engines join the trainer's group. `init_info`: the trainer's, for their kind.
    Raises `BackendError`; `Conflict` if the trainer expects another number of workers."""
    wanted = 1 + await workers_of(members)
    if wanted == 1 or init_info.get("world_size") != wanted:
        raise Conflict(
            f"the NCCL group needs {wanted} processes, not {init_info.get('world_size')}",
            hint="ask again: GET /v1/weights?nccl=true",
        )
    rank = 1
    try:
        async with asyncio.TaskGroup() as tasks:
            for member in members:
                info = {**init_info, "rank_offset": rank}
                rank += await workers_of([member])
                tasks.create_task(member.backend.join_group(info, timeout_s=timeout_s))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return NcclGroup(await _processes(members))


async def _processes(members: Collection[PoolMember]) -> dict[str, str]:
    return {member.backend.url: await member.backend.process() for member in members}
