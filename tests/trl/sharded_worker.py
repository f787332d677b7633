"""One of two processes that hold a policy's weights in shards (FSDP2), started by torchrun.

`sharded_worker.py POLICY OUTPUT`: the main process writes what `full_weights` gathers to
OUTPUT/version-1.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch.distributed import barrier, destroy_process_group
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from prorl_trl.safetensors_file import SafetensorsFile
from prorl_trl.weights import full_weights, save


def main(policy: Path, output: Path) -> None:
    accelerator = Accelerator(cpu=True)
    # Accelerate shards on accelerators only. What gathers the shards is the same on a CPU.
    state = AcceleratorState()
    state.distributed_type = DistributedType.FSDP
    state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    assert all(isinstance(one, DTensor) for one in model.parameters())
    trainer = SimpleNamespace(accelerator=accelerator, model=model, model_wrapped=model)
    with full_weights(trainer) as weights:
        if accelerator.is_main_process:
            save(SafetensorsFile(weights), output, 1)
    barrier()
    destroy_process_group()
    os._exit(0)  # gloo's threads at times abort a process that ends as others do


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
