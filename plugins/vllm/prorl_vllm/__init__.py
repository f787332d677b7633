"""Plug-in of vLLM: weights that the rollout service has, over HTTP or from a shared file.

Installed beside stock vLLM, which loads it in every process, it registers a weight-transfer
backend: `vllm serve MODEL --weight-transfer-config '{"backend": "prorl"}'`.
"""

BACKEND = "prorl"


def register() -> None:
    """What vLLM calls, perhaps several times in one process."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "prorl_vllm.engine", "PullEngine")
