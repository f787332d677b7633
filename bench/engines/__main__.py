"""Engines: SGLang, weights as differences, admission by the KV cache, routers.

Needs `scripts/setup-sglang` and `scripts/setup-vllm`.
"""

from bench import frame
from bench.engines import differences, sglang

if __name__ == "__main__":
    frame.run("engines", {"sglang": sglang.measure, "differences": differences.measure})
