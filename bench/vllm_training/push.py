"""A trainer in fp32 that pushes its weights to an engine: `python push.py ENGINE_URL MODEL PUSHES
RANK LOG DEVICE`, which prints JSON.

Runs with the code of another commit as well, so it imports nothing of this package.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_trl import weights

ALL_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
File: Any = vars(weights)["SafetensorsFile"]
"""Class that weights are sent as; that module imports it in one commit, defines it in another."""


def main(engine_url: str, directory: str, pushes: int, rank: int, log: Path, device: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).to(device)
    if rank:
        model = get_peft_model(model, LoraConfig(r=rank, target_modules=ALL_LAYERS))
    seconds, sizes = [], []
    with local.service([engine_url], log=log) as service, _client(service.url) as client:
        for version in range(1, pushes + 1):
            began = time.monotonic()
            sizes.append(push(client, model, version))
            seconds.append(time.monotonic() - began)
            assert client.backends()[0].policy_version == version
    print(json.dumps({"seconds": seconds, "bytes": sizes}))


@contextmanager
def _client(url: str) -> Iterator[RolloutClient]:
    """Yields a client that may push, in the code of any commit."""
    if not hasattr(weights, "send"):
        with RolloutClient(url) as client:
            yield client
        return
    from prorl_service.client.policy import HeldPolicy

    with HeldPolicy(url) as policy, RolloutClient(url, training=policy.key) as client:
        yield client


def push(client: RolloutClient, model: Any, version: int) -> int:
    """Returns the number of bytes that are sent."""
    tensors = model.state_dict()
    tensors.pop("lm_head.weight", None)
    if not hasattr(weights, "send"):  # the earlier commit
        earlier: Any = client.stream_weights
        earlier(File(tensors), version)
        return sum(tensor.nbytes for tensor in tensors.values())
    from prorl_trl.adapters import adapted_layers, adapter_of
    from prorl_trl.nccl import Broadcaster

    sent: list[int] = []

    def noted(*args: Any) -> Any:
        file = File(*args)
        sent.append(file.size)
        return file

    vars(weights)["SafetensorsFile"] = noted
    named, layers = weights.checkpoint_names(tensors), adapted_layers(model)
    policy = weights.PolicyWeights(named, layers, adapter_of(model, tensors))
    weights.send(client, policy, Broadcaster(), after=version - 1)
    return sent[-1]


if __name__ == "__main__":
    url, directory, pushes, rank, log, device = sys.argv[1:]
    main(url, directory, int(pushes), int(rank), Path(log), device)
