"""A stub engine that says how full it is."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from prorl_service.schemas import EngineGauges
from prorl_service.testing import StubEngine
from prorl_service.testing.loopback import Handler


def text_of(gauges: EngineGauges) -> str:
    """Returns the `/metrics` of an engine, as vLLM writes them."""
    samples = {
        f'vllm:cache_config_info{{block_size="16",kv_cache_size_tokens="{gauges.kv_tokens}"}}': 1,
        'vllm:kv_cache_usage_perc{engine="0"}': gauges.kv_use,
        'vllm:num_requests_waiting{engine="0"}': gauges.waiting,
        'vllm:num_preemptions_total{engine="0"}': gauges.preemptions,
    }
    if gauges.started_at is not None:
        samples["process_start_time_seconds"] = gauges.started_at
    return "".join(f"{name} {value}\n" for name, value in samples.items())


class GaugedEngine(StubEngine):
    gauges = EngineGauges(kv_tokens=1000)

    def routes(self) -> Mapping[str, Handler]:
        return {**super().routes(), "/metrics": self._metrics}

    async def _metrics(self, _: Request) -> Response:
        return Response(text_of(self.gauges))
