"""A real SGLang on CPU, for tests of everything that talks to engines.

`scripts/test-sglang` makes its environment, and names it in PRORL_TEST_SGLANG.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path

from prorl_service import local

ENVIRONMENT = os.environ.get("PRORL_TEST_SGLANG")
ROOT = Path(__file__).parents[1]
PYTHON = ROOT / (ENVIRONMENT or ".venv-sglang") / "bin/python"
OPTIONS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--dtype", "float32", "--mem-fraction-static", "0.5", "--max-total-tokens", "65536"),
    *("--disable-overlap-schedule", "--disable-cuda-graph", "--enable-metrics"),
    *("--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "all"),
    *("--lora-backend", "torch_native"),
)
"""Options of SGLang that a CPU needs, and those for adapters and metrics. The share of memory is a
bound only: other processes take and free theirs while SGLang measures."""
RESERVED_TOKENS = 6
"""Tokens of its context that SGLang leaves to no call."""
SGLANG_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "PYTHONPATH": str(ROOT / "tests/inference/sglang_stubs"),
    "HF_HUB_OFFLINE": "1",
}
START_TIMEOUT_S = 600


def sglang(
    model: Path, *, log: Path, port: int | None = None, max_model_len: int = 2048
) -> AbstractContextManager[local.LocalProcess]:
    """Runs SGLang, serving `model`. `max_model_len`: what the service may use of its context."""
    length = ["--context-length", str(max_model_len + RESERVED_TOKENS)]
    server = [str(PYTHON), "-m", "sglang.launch_server", "--host", "127.0.0.1"]
    return local.running(
        [*server, "--model-path", str(model), *OPTIONS, *length],
        log=log,
        port=port,
        environment=SGLANG_ENVIRONMENT,
        start_timeout_s=START_TIMEOUT_S,
    )
