"""Engines: SGLang, weights as differences, admission by the KV cache, routers.

Needs `scripts/setup-sglang` and `scripts/setup-vllm`.
"""

from bench import frame
from bench.engines import differences, kv, routers, sglang

PARTS: dict[str, frame.Part] = {
    "sglang": sglang.measure,
    "differences": differences.measure,
    "kv": kv.measure,
    "routers": routers.measure,
}

if __name__ == "__main__":
    frame.run("engines", PARTS)
