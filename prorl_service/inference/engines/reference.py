"""Our own engine, `prorl engine`, over HTTP; its server is `reference_engine`.

It merges adapters into its weights, checks weights before it touches its own, and samples from the
distribution whose logprobs it gives.
"""

from prorl_service.errors import BackendRejected
from prorl_service.inference.engines.base import (
    Broadcast,
    EngineInfo,
    Intake,
    Transfer,
    WeightFile,
    WeightSource,
)
from prorl_service.inference.engines.vllm_routes import FetchFile, Reload, VllmRoutes

OWNER = "prorl-reference-engine"
"""Owner that the reference engine reports for its model."""
ANY_RANK = 2**31 - 1


class ReferenceEngine(VllmRoutes):
    kind = "prorl"
    owned_by = OWNER

    async def intake(self, info: EngineInfo) -> Intake:
        return Intake(info.dtype, "", ANY_RANK, logprobs_mode="processed")

    async def transfer(self, source: WeightSource, info: EngineInfo, intake: Intake) -> Transfer:
        if isinstance(source, Broadcast):
            raise BackendRejected(f"{self.http.url} takes no broadcasts")
        if isinstance(source, WeightFile):
            return FetchFile(self, source)
        return Reload(self, source)
