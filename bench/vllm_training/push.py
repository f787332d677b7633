"""A trainer in fp32 that pushes its weights to an engine, and prints seconds and bytes as JSON.

`python -m bench.vllm_training.push ENGINE_URL MODEL PUSHES RANK LOG`; a rank makes it LoRA.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.policy import HeldPolicy
from prorl_trl import weights
from prorl_trl.adapters import adapted_layers, adapter_of
from prorl_trl.nccl import Broadcaster

ALL_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main(engine_url: str, directory: str, pushes: int, rank: int, log: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    if rank:
        model = get_peft_model(model, LoraConfig(r=rank, target_modules=ALL_LAYERS))
    seconds, sizes = [], []
    with (
        local.service([engine_url], log=log) as service,
        HeldPolicy(service.url) as policy,
        RolloutClient(service.url, training=policy.key) as client,
    ):
        for version in range(1, pushes + 1):
            began = time.monotonic()
            sizes.append(push(client, model, version))
            seconds.append(time.monotonic() - began)
            assert client.backends()[0].policy_version == version
    print(json.dumps({"seconds": seconds, "bytes": sizes}))


def push(client: RolloutClient, model: Any, version: int) -> int:
    """Returns the number of bytes that are sent."""
    tensors = model.state_dict()
    tensors.pop("lm_head.weight", None)
    file_class: Any = vars(weights)["SafetensorsFile"]
    sent: list[int] = []

    def noted(*args: Any) -> Any:
        file = file_class(*args)
        sent.append(file.size)
        return file

    vars(weights)["SafetensorsFile"] = noted
    named, layers = weights.checkpoint_names(tensors), adapted_layers(model)
    policy = weights.PolicyWeights(named, layers, adapter_of(model, tensors))
    weights.send(client, policy, Broadcaster(), after=version - 1)
    vars(weights)["SafetensorsFile"] = file_class
    return sent[-1]


if __name__ == "__main__":
    url, directory, pushes, rank, log = sys.argv[1:]
    main(url, directory, int(pushes), int(rank), Path(log))
