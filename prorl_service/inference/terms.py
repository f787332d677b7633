"""In which form and type a trainer sends its weights: what it can give and all engines take.

Engines that are down have no say; back again, they take what there is, or say why they cannot.
"""

import os.path
from collections.abc import Collection

from prorl_service.inference.answers import EngineInfo
from prorl_service.inference.intake import Intake
from prorl_service.inference.member import Member
from prorl_service.schemas import BackendState, WeightsForm, WeightsTerms


async def agree(
    members: Collection[Member], *, as_file: bool, lora_rank: int, base: str
) -> WeightsTerms:
    """`as_file`: not in a directory. `lora_rank`, `base`: as in the query. Raises `BackendError`;
    `BackendRejected` for an engine that takes no files."""
    engines = []
    for member in members:
        if member.info is not None and member.state is not BackendState.DOWN:
            intake = await member.backend.intake(member.info)
            if as_file:
                intake.require_files(member.spec.url)
            engines.append((member.info, intake, member.spec.url))
    dtypes = {intake.dtype for _, intake, _ in engines}
    terms = WeightsTerms(form=WeightsForm.MODEL, dtype=dtypes.pop() if len(dtypes) == 1 else None)
    if not lora_rank:
        return terms
    reasons = [_against_adapter(*engine, rank=lora_rank, base=base) for engine in engines]
    reason = next(filter(None, reasons), "" if reasons else "no engine is up")
    form = WeightsForm.MODEL if reason else WeightsForm.ADAPTER
    return terms.model_copy(update={"form": form, "reason": reason})


def _against_adapter(
    info: EngineInfo, intake: Intake, url: str, *, rank: int, base: str
) -> str | None:
    """Why the engine cannot put an adapter of `base` on its model."""
    if intake.max_lora_rank == 0:
        return f"{url} takes no LoRA adapters"
    if intake.max_lora_rank < rank:
        return f"{url} takes LoRA adapters up to rank {intake.max_lora_rank}"
    if not info.has_first_base:
        return f"{url} has other weights than it was started with"
    if info.root != base and os.path.realpath(info.root) != os.path.realpath(base):
        return f"{url} was started with {info.root}, the adapter is for {base}"
    return None
