"""The kinds of engines that tests run against: the reference engine and, as `scripts/test-vllm` or
`scripts/test-sglang` asks by a variable, vLLM or SGLang."""

from contextlib import AbstractContextManager
from pathlib import Path

from prorl_service import local
from tests import sglang_engine, vllm_engine

ENGINES = [
    "reference",
    *(["vllm"] if vllm_engine.ENVIRONMENT else []),
    *(["sglang"] if sglang_engine.ENVIRONMENT else []),
]


def engine(
    kind: str, model: Path, *, log: Path, port: int | None = None, max_model_len: int = 2048
) -> AbstractContextManager[local.LocalProcess]:
    """Starts an engine of a `kind` in `ENGINES`.

    Engines of others log tracebacks when they are stopped; their logs are not named `*.log`, which
    tests check for errors.
    """
    length = ["--max-model-len", str(max_model_len)]
    if kind == "sglang":
        output = log.with_suffix(".sglang")
        return sglang_engine.sglang(model, log=output, port=port, max_model_len=max_model_len)
    if kind == "vllm":
        output = log.with_suffix(".vllm")
        options = [*vllm_engine.OPTIONS, *length]
        return vllm_engine.vllm(vllm_engine.PYTHON, model, log=output, port=port, options=options)
    return local.engine(model, log=log, port=port, options=length)
