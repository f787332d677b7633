"""Time of new weights from a trainer in fp32 to an engine in bf16, at 1 and 4 GB of fp32.

The seconds of a push are the trainer's, from its tensors until the engine serves with them.
"""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from bench.frame import Found, Row
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.policy import HeldPolicy
from prorl_service.client.weights_copy import WeightsCopy
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_trl import weights
from prorl_trl.adapters import adapted_layers, adapter_of
from prorl_trl.nccl import Broadcaster
from prorl_trl.safetensors_file import SafetensorsFile
from tests import vllm_engine

VLLM_OPTIONS = ("--enforce-eager", "--kv-cache-memory-bytes", str(2**28), "--enable-lora")
PUSHES = 4
"""Pushes of each kind; the first, which meets cold caches, is left out."""
ALL_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTER = "vLLM, LoRA of rank 8"
WAYS = {"reference engine": ("reference", 0), "vLLM": ("vllm", 0), ADAPTER: ("vllm", 8)}
"""Kinds of engines, with the rank of LoRA."""
DEEP = {"num_hidden_layers": 20, "num_attention_heads": 16, "num_key_value_heads": 8}
SHAPES = {
    "1 GB": {"hidden_size": 1024, "intermediate_size": 3072, "head_dim": 64, **DEEP},
    "4 GB": {"hidden_size": 2048, "intermediate_size": 6144, "head_dim": 128, **DEEP},
}
"""Settings of Qwen3, keyed by the size in fp32."""


def measure(quick: bool) -> Found:
    rows: list[Row] = []
    with TemporaryDirectory() as directory:
        for size, shape in list(SHAPES.items())[: 1 if quick else None]:
            model = random_model(Path(directory) / size.replace(" ", ""), shape)
            for who, (kind, rank) in WAYS.items():
                seconds, sent = push(model, kind, rank)
                figures = {"s": round(seconds, 3), "sent_mb": round(sent / 1e6, 1)}
                speed = round(sent / seconds / 1e9, 3)
                rows.append({"size": size, "who": who, **figures, "gb_per_s": speed})
                print(rows[-1], flush=True)
    largest = {row["who"]: row for row in rows}
    share = largest[ADAPTER]["sent_mb"] / largest["vLLM"]["sent_mb"]
    headline = {
        "weights_gb_per_s": largest["vLLM"]["gb_per_s"],
        "adapter_bytes_share": round(share, 5),
    }
    return Found(rows, headline)


def push(model: Path, kind: str, rank: int) -> tuple[float, int]:
    """Returns the median of seconds, and the bytes of the last push. `rank`: of LoRA; 0: none."""
    trained = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if rank:
        trained = get_peft_model(trained, LoraConfig(r=rank, target_modules=ALL_LAYERS))
    seconds, sizes = [], []
    with (
        TemporaryDirectory() as logs,
        engine(kind, model, Path(logs)) as process,
        local.service([process.url], log=Path(logs, "service")) as service,
        HeldPolicy(service.url) as policy,
        RolloutClient(service.url, training=policy.key) as client,
    ):
        for version in range(1, PUSHES + 1):
            began = time.monotonic()
            sizes.append(_send(client, trained, version))
            seconds.append(time.monotonic() - began)
            assert client.backends()[0].policy_version == version
    return median(seconds[1:]), sizes[-1]


def _send(client: RolloutClient, model: Any, version: int) -> int:
    """Returns the number of bytes that are sent."""
    tensors = model.state_dict()
    tensors.pop("lm_head.weight", None)
    sent: list[int] = []

    def noted(*args: Any) -> SafetensorsFile:
        file = SafetensorsFile(*args)
        sent.append(file.size)
        return file

    named, layers = weights.checkpoint_names(tensors), adapted_layers(model)
    policy = weights.PolicyWeights(named, layers, adapter_of(model, tensors))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "SafetensorsFile", noted)
        weights.send(client, policy, Broadcaster(), WeightsCopy(), after=version - 1)
    return sent[-1]


def engine(kind: str, model: Path, logs: Path) -> AbstractContextManager[local.LocalProcess]:
    options = ["--dtype", "bfloat16", "--max-model-len", "512"]
    if kind == "vllm":
        options += VLLM_OPTIONS
        return vllm_engine.vllm(vllm_engine.PYTHON, model, log=logs / "vllm", options=options)
    return local.engine(model, log=logs / "engine", options=options)


def random_model(directory: Path, shape: Mapping[str, float]) -> Path:
    """Makes a random Qwen3 in bf16, with the tokenizer of the tiny one. `shape`: its settings."""
    build_tiny_model(directory, tie_word_embeddings=True)
    config = AutoConfig.from_pretrained(directory)
    config = type(config)(**config.to_diff_dict() | {"layer_types": None} | shape)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory, max_shard_size="20GB")
    return directory
