"""What vLLM and the reference engine say of their load in `/metrics`, in Prometheus text format.

vLLM tells the times of all its calls together, in histograms, and of no single call. Its `/load` is
of no use: it leaves out calls by token ids.
"""

import re
from collections.abc import Iterable

from prorl_service.schemas import EngineGauges, EngineTimes

_SAMPLE = re.compile(
    r"^(?:vllm:)?(process_start_time_seconds|kv_cache_usage_perc|num_requests_waiting"
    r"|num_preemptions_total|cache_config_info|request_(?:queue|prefill|decode)_time_seconds_sum"
    r"|request_decode_time_seconds_count)(?:{(.*)})? (\S+)$",
    re.MULTILINE,
)
_LABEL = re.compile(r'(?:^|,)(kv_cache_size_tokens|block_size|num_gpu_blocks)="(\d+)"')


def read(text: str) -> EngineGauges | None:
    """Returns the sums over the server's engines, and the mean use of their caches; None if the
    text is not of such a server. Raises `ValueError` for values that are not numbers."""
    samples = dict[str, list[float]]()
    caches = list[str]()
    for name, labels, value in _SAMPLE.findall(text):
        samples.setdefault(name, []).append(float(value))
        if name == "cache_config_info":
            caches.append(labels)
    if "num_requests_waiting" not in samples:
        return None
    uses = samples.get("kv_cache_usage_perc", [0.0])
    total = {name: sum(values) for name, values in samples.items()}
    queue, prefill, decode = (
        total.get(f"request_{phase}_time_seconds_sum") for phase in ("queue", "prefill", "decode")
    )
    return EngineGauges(
        kv_tokens=_tokens(caches),
        kv_use=sum(uses) / len(uses),
        waiting=int(total["num_requests_waiting"]),
        preemptions=int(total.get("num_preemptions_total", 0)),
        timed_calls=int(total.get("request_decode_time_seconds_count", 0)),
        times=None
        if queue is None or prefill is None or decode is None
        else EngineTimes(queue_s=queue, prefill_s=prefill, decode_s=decode),
        started_at=total.get("process_start_time_seconds"),
    )


def _tokens(caches: Iterable[str]) -> int | None:
    """Returns how many tokens the caches of these configurations hold; 0 of one that does not say
    makes the sum unknown."""
    tokens = [_tokens_of(dict(_LABEL.findall(labels))) for labels in caches]
    return sum(tokens) if tokens and all(tokens) else None


def _tokens_of(cache: dict[str, str]) -> int:
    """Returns 0 if it does not say. Releases before 0.32 have blocks alone."""
    if size := int(cache.get("kv_cache_size_tokens", 0)):
        return size
    return int(cache.get("block_size", 0)) * int(cache.get("num_gpu_blocks", 0))
