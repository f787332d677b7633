"""What vLLM says of its load in `/metrics`."""

import pytest

from prorl_service.inference.engines.vllm_metrics import read
from prorl_service.schemas import EngineGauges, EngineTimes
from tests.inference.gauges import text_of

CACHE = (
    'vllm:cache_config_info{{_block_size_resolved="True",block_size="32",cache_dtype="auto",'
    'effective_attention_block_size="16",engine="{engine}",{size}num_cpu_blocks="None",'
    'num_gpu_blocks="{blocks}",num_gpu_blocks_override="7"}} 1.0\n'
)
"""One line of vLLM 0.32, shortened."""


def engine(number: int, size: str = "", blocks: str = "96") -> str:
    labels = f'{{engine="{number}",model_name="m"}}'
    return (
        CACHE.format(engine=number, size=size, blocks=blocks)
        + f"vllm:num_requests_waiting{labels} 2.0\n"
        + f'vllm:num_requests_waiting_by_reason{{engine="{number}",reason="capacity"}} 9.0\n'
        + f"vllm:kv_cache_usage_perc{labels} 0.{5 + number}\n"
        + f"vllm:num_preemptions_total{labels} 3.0\n"
        + f"vllm:num_preemptions_created{labels} 1.79e+09\n"
        + f"vllm:request_queue_time_seconds_sum{labels} 0.5\n"
        + f"vllm:request_prefill_time_seconds_sum{labels} 1.5\n"
        + f"vllm:request_decode_time_seconds_sum{labels} 2e-3\n"
        + f"vllm:request_decode_time_seconds_count{labels} 4.0\n"
    )


def test_engines_of_one_server_are_added_up() -> None:
    size = 'kv_cache_size_tokens="3000",'
    start = "process_start_time_seconds 1.5e+09\n# TYPE x gauge\n"
    assert read(start + engine(0, size) + engine(1, size)) == EngineGauges(
        kv_tokens=6000,
        kv_use=0.55,
        waiting=4,
        preemptions=6,
        timed_calls=8,
        times=EngineTimes(queue_s=1.0, prefill_s=3.0, decode_s=4e-3),
        started_at=1.5e9,
    )


def test_older_releases_tell_blocks_alone() -> None:
    gauges = read(engine(0))
    assert gauges is not None
    assert (gauges.kv_tokens, gauges.started_at) == (96 * 32, None)


@pytest.mark.parametrize("text", [engine(0, blocks="None"), "vllm:num_requests_waiting 0\n"])
def test_a_cache_whose_size_is_not_told_is_unknown(text: str) -> None:
    gauges = read(text)
    assert gauges is not None
    assert gauges.kv_tokens is None


def test_other_texts_say_nothing() -> None:
    assert read("<html>vllm:num_requests_waiting</html>") is None
    assert read("process_start_time_seconds 1.0\n") is None
    with pytest.raises(ValueError, match="float"):
        read("vllm:num_requests_waiting many\n")


def test_the_stub_writes_what_is_read() -> None:
    gauges = EngineGauges(kv_tokens=5, kv_use=0.5, waiting=1, preemptions=2, started_at=3.0)
    assert read(text_of(gauges)) == gauges
