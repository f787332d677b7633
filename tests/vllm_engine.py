"""A real vLLM on CPU, for tests of everything that talks to engines.

`scripts/test-vllm` makes its environments, one for each release, and names one in PRORL_TEST_VLLM;
without that variable, tests run against the reference engine only.
"""

import os
from contextlib import AbstractContextManager
from pathlib import Path

from prorl_service import local

ENVIRONMENT = os.environ.get("PRORL_TEST_VLLM")
ENGINES = ["reference", "vllm"] if ENVIRONMENT else ["reference"]
PYTHON = Path(__file__).parents[1] / (ENVIRONMENT or "") / "bin/python"
OPTIONS = (
    *("--dtype", "float32", "--enforce-eager", "--max-num-batched-tokens", "64"),
    *("--kv-cache-memory-bytes", str(2**26), "--block-size", "32"),
    *(("--enable-lora", "--max-lora-rank", "8") if ENVIRONMENT == ".venv-vllm" else ()),
)
"""Options of vLLM; only the newest release is given adapters."""


def engine(
    kind: str, model: Path, *, log: Path, port: int | None = None, max_model_len: int = 2048
) -> AbstractContextManager[local.LocalProcess]:
    """Starts an engine of a `kind` in `ENGINES`.

    A stopped vLLM logs tracebacks; its log is not named `*.log`, which tests check for errors.
    """
    length = ["--max-model-len", str(max_model_len)]
    if kind == "vllm":
        output = log.with_suffix(".vllm")
        return local.vllm(PYTHON, model, log=output, port=port, options=[*OPTIONS, *length])
    return local.engine(model, log=log, port=port, options=length)
