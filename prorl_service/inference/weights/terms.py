"""Form, type and way of a trainer's weights: those that it can give and all engines take.

Engines out of reach have no say; once back, they take the weights or report why they cannot.
"""

import os.path
from collections.abc import Collection

from prorl_service.inference.engines.base import EngineInfo, Intake
from prorl_service.inference.member import Member
from prorl_service.inference.weights import nccl
from prorl_service.inference.weights.nccl import NcclGroup
from prorl_service.schemas import WeightsForm, WeightsQuery, WeightsTerms


async def agree(
    members: Collection[Member], group: NcclGroup | None, query: WeightsQuery
) -> WeightsTerms:
    """`members`: those that answer; `group`: the last one that a trainer opened. Raises
    `BackendError`; `BackendRejected` for an engine that takes no files."""
    engines = []
    workers = await nccl.workers_of(members) if query.nccl else 0
    for member in members:
        assert member.info is not None
        intake = await member.backend.intake(member.info)
        if query.as_file and not workers:
            intake.require_files(member.spec.url)
        engines.append((member.info, intake, member.spec.url))
    dtypes = {intake.dtype for _, intake, _ in engines}
    terms = WeightsTerms(
        form=WeightsForm.MODEL,
        dtype=dtypes.pop() if len(dtypes) == 1 else None,
        workers=workers,
        group=group.group_id if workers and group and await group.is_of(members) else "",
    )
    if not query.lora_rank:
        return terms
    reasons = [_against_adapter(*engine, query) for engine in engines]
    reason = next(filter(None, reasons), "" if reasons else "no engine is up")
    form = WeightsForm.MODEL if reason else WeightsForm.ADAPTER
    return terms.model_copy(update={"form": form, "reason": reason})


def _against_adapter(info: EngineInfo, intake: Intake, url: str, query: WeightsQuery) -> str | None:
    """Returns why the engine cannot put the adapter on its model; None if it can."""
    if intake.max_lora_rank == 0:
        return f"{url} takes no LoRA adapters"
    if intake.max_lora_rank < query.lora_rank:
        return f"{url} takes LoRA adapters up to rank {intake.max_lora_rank}"
    if not info.has_first_base:
        return f"{url} no longer has the weights it was started with"
    if info.root != query.base and os.path.realpath(info.root) != os.path.realpath(query.base):
        return f"{url} was started with {info.root}, but the adapter is for {query.base}"
    return None
