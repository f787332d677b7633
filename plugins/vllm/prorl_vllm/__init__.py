"""Plug-in of vLLM that loads weights of the rollout service, over HTTP or from a shared file.

Installed next to stock vLLM, which loads it in every process, it registers a weight-transfer
backend: `vllm serve MODEL --weight-transfer-config '{"backend": "prorl"}'`.
"""

BACKEND = "prorl"


def register() -> None:
    """Registers the backend. vLLM may call it several times in one process."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "prorl_vllm.engine", "PullEngine")
