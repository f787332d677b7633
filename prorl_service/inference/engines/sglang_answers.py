"""What SGLang says of itself, of its load and of a call. Asks nothing."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Self

from prorl_service.inference.engines.base import EngineGauges, EngineTimes

RETRACTIONS = re.compile(r"^sglang:num_retracted_requests_total{.*} (\S+)$", re.MULTILINE)
"""Counter of calls begun again for want of cache; it is missing before the first."""
DTYPES = ("float32", "bfloat16", "float16")
"""Values of its option --dtype that name one type."""


@dataclass(frozen=True, slots=True)
class SglangInfo:
    """What SGLang says of how it was started."""

    version: str
    model: str
    root: str
    context: int
    dtype: str | None
    max_lora_rank: int
    is_deterministic: bool
    workers: int
    """Number of its workers, if they can be in a group with a trainer; else 0."""

    @classmethod
    def read(cls, answer: Any) -> Self:
        dtype = answer["dtype"]
        return cls(
            version=str(answer["version"]),
            model=str(answer["served_model_name"]),
            root=str(answer["model_path"]),
            context=int(answer["max_req_input_len"]),  # less than its context; prompts are shorter
            dtype=dtype if dtype in DTYPES else None,
            max_lora_rank=int(answer["max_lora_rank"] or 0) if answer["enable_lora"] else 0,
            is_deterministic=bool(answer["enable_deterministic_inference"]),
            workers=int(answer["tp_size"]) if _can_receive(answer) else 0,
        )


def _can_receive(answer: Any) -> bool:
    """Returns False, too, for stages and replicas, which SGLang would give the same ranks."""
    return bool(answer["device"] == "cuda" and answer["pp_size"] == answer["dp_size"] == 1)


def read_process(answer: Any) -> str:
    """Returns how long the start took, to fractions of a microsecond: no two take the same."""
    times = answer["startup_time"]
    return f"{times['scheduler_e2e']} {times['tokenizer_e2e']}"


def read_gauges(answer: Any) -> EngineGauges:
    """Adds up the data-parallel ranks, and takes the mean of their use."""
    loads = answer["loads"]
    return EngineGauges(
        kv_tokens=sum(one["max_total_num_tokens"] for one in loads),
        kv_use=fmean(one["token_usage"] for one in loads),
        waiting=sum(one["num_waiting_reqs"] for one in loads),
    )


def read_retractions(metrics: str) -> int:
    return int(sum(map(float, RETRACTIONS.findall(metrics))))


def read_times(meta: Mapping[str, Any]) -> EngineTimes | None:
    """Returns None for a server without --enable-metrics, and for a call that had no token."""
    begun, first = meta.get("forward_entry_time"), meta.get("prefill_finished_time")
    if begun is None or first is None:
        return None
    last = meta["request_finished_ts"]
    return EngineTimes(
        queue_s=meta["queue_time"], prefill_s=first - begun, decode_s=max(0.0, last - first)
    )


def read_directory(answer: Any) -> str:
    return str(answer["directory"])
