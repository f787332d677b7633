"""Support for verl's own vLLM replica on a CPU: `worker_extension_cls` of its engine.

verl lets vLLM's models load weights in place. On a CPU vLLM has packed its matrices by then, and
they have lost their loaders, so vLLM's own reload puts the weights there instead, as in our plug-in
for vLLM. Whole models in full precision only.
"""

from typing import Any

import torch
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from prorl_vllm.engine import load


class CPUWorkerExtension(vLLMColocateWorkerExtension):  # type: ignore[misc]
    """Extension that vLLM makes a base class of its worker."""

    def update_weights_from_ipc(
        self,
        peft_config: dict[str, Any] | None = None,
        base_sync_done: bool = False,
        use_shm: bool = False,
    ) -> None:
        """Raises `ValueError` for LoRA adapters."""
        if peft_config:
            raise ValueError("vLLM on a CPU is given no adapters: set model.lora.merge=true")
        weights: list[tuple[str, torch.Tensor]] = []

        def keep(part: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            weights.extend((name, tensor.clone()) for name, tensor in part)

        receiver = BucketedWeightReceiver(
            zmq_handle=self._get_zmq_handle(), device=torch.device("cpu"), use_shm=use_shm
        )
        receiver.receive_weights(on_bucket_received=keep)
        runner = self.model_runner
        load(runner.model, runner.vllm_config.model_config, weights)
