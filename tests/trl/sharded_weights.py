"""A policy's weights in shards (FSDP2), held by two processes.

The main process gathers the shards and writes the model to model.safetensors, the model with its
LoRA adapter merged in to merged.safetensors, and the adapter alone to adapter.safetensors. In
between it fails once, midway.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from peft import LoraConfig, get_peft_model
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from prorl_trl.safetensors_file import SafetensorsFile, Tensors
from prorl_trl.weights import PolicyWeights, on_main_with, policy_weights


def write(policy: Path, output: Path) -> None:
    """Collective of both processes."""
    accelerator = Accelerator(cpu=True)
    output.mkdir(exist_ok=True)
    # Accelerate shards on accelerators only. The code that gathers them is the same on a CPU.
    state = AcceleratorState()
    state.distributed_type = DistributedType.FSDP
    state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)

    def sharded(model: Any) -> PolicyWeights:
        fully_shard(model)
        assert all(isinstance(one, DTensor) for one in model.parameters())
        return policy_weights(
            SimpleNamespace(accelerator=accelerator, model=model, model_wrapped=model)
        )

    def gather(weights: PolicyWeights, source: Tensors, name: str) -> None:
        file = SafetensorsFile(source)
        on_main_with(weights, accelerator, lambda: file.write(output / f"{name}.safetensors"))

    plain = sharded(AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32))
    gather(plain, plain.whole_model, "model")
    break_off(plain, accelerator)
    gather(plain, plain.whole_model, "model-again")
    torch.manual_seed(0)  # the same adapter in both processes
    config = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    base = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    adapted = get_peft_model(base, config)
    if accelerator.is_main_process:
        adapted.save_pretrained(output / "adapter")
    weights = sharded(adapted)
    gather(weights, weights.whole_adapter, "adapter")
    gather(weights, weights.whole_model, "merged")


def break_off(weights: PolicyWeights, accelerator: Any) -> None:
    def fail() -> None:
        for number, _ in enumerate(weights.whole_model):
            if number == 2:
                raise ValueError("midway")

    with pytest.raises((ValueError, RuntimeError), match="midway"):
        on_main_with(weights, accelerator, fail)
