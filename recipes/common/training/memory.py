"""Estimates of the memory that a training takes, by formulas, before anything runs.

Activations, fragmentation and communication are not in them: a run needs more. Measures nothing.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prorl_service.agents.swe.agent import LIMITS, SweAgent
from prorl_service.sandbox.base import SandboxLimits
from recipes.common.settings import Training

STATE_BYTES = 4 + 4 + 4 + 4
"""Bytes of a trained parameter, in fp32: weight, gradient, Adam's two moments."""
FROZEN_BYTES = 4
"""Bytes of a parameter under an adapter; the adapter's own are few."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Figures from a model's configuration. In engines, weights and cache are of 16 bits."""

    parameters: float
    layers: int
    kv_heads: int
    head_size: int

    @property
    def weights_gb(self) -> float:
        return 2 * self.parameters / 1e9

    @property
    def token_kb(self) -> float:
        """Size of a token in an engine's cache: keys and values of all layers."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size / 1e3


SHAPES = {
    "qwen3_4b": ModelShape(4.02e9, 36, 8, 128),
    "qwen3_8b": ModelShape(8.19e9, 36, 8, 128),
    "qwen3_14b": ModelShape(14.77e9, 40, 8, 128),
}
"""Shapes of the models that configurations name on the hub."""


def shape_of(config: dict[str, Any]) -> ModelShape | None:
    """Returns the shape of a dense decoder with gated MLPs, by its config.json; None for another.

    parameters = (1 or 2) V H + L (2 H D (A + K) + 3 H I), for a vocabulary V, hidden size H, L
    layers, A heads and K of keys and values of size D, inner size I. Norms and biases are left out.
    """
    if "intermediate_size" not in config or "num_experts" in config:
        return None
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_size = config.get("head_dim") or hidden // heads
    embeddings = config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings") else 2)
    layer = 2 * hidden * head_size * (heads + kv_heads) + 3 * hidden * config["intermediate_size"]
    return ModelShape(embeddings + layers * layer, layers, kv_heads, head_size)


def lines(settings: Training) -> Iterator[str]:
    """Yields what the trainer's GPUs, the engines and the sandboxes take."""
    yield "memory, an estimate without activations:"
    shape = _shape(settings)
    if shape is not None and settings.cluster.gpus_per_node:
        yield f"- trainer: {_trainer(settings, shape)}"
        gpus, context = settings.model.tensor_parallel, settings.agent.context
        cache_gb = shape.token_kb * context / 1e6
        yield (
            f"- engine of {gpus} GPUs: {shape.weights_gb / gpus:.1f} GB of weights on each; "
            f"{cache_gb / gpus:.1f} GB of cache on each for a rollout of {context} tokens"
        )
    rollouts = settings.algorithm.prompts_per_step * settings.algorithm.rollouts_per_prompt
    sandboxes = min(rollouts, settings.sandbox.run_workers) + settings.sandbox.eval_workers
    limits = LIMITS if settings.agent.name == SweAgent.name else SandboxLimits()
    yield f"- sandboxes: {sandboxes} at once, at most {limits.memory_mb} MB each, on service hosts"


def _shape(settings: Training) -> ModelShape | None:
    path = settings.model.path
    config = None if path is None else Path(path).expanduser() / "config.json"
    if config is not None and config.is_file():
        return shape_of(json.loads(config.read_text()))
    return SHAPES.get(settings.model.name)


def _trainer(settings: Training, shape: ModelShape) -> str:
    is_whole = settings.algorithm.lora_rank == 0
    gb = (STATE_BYTES if is_whole else FROZEN_BYTES) * shape.parameters / 1e9
    what = "weights, gradients and moments" if is_whole else "weights under the adapter"
    if settings.trainer.name == "tinker":
        return f"{gb:.1f} GB of {what} on the Tinker server"
    if settings.trainer.name == "trl":
        return f"{gb:.1f} GB of {what} on each GPU, unless Accelerate shards them"
    gpus = settings.cluster.nodes * settings.cluster.gpus_per_node
    return f"{gb:.1f} GB of {what}, {gb / gpus:.1f} GB a GPU while it updates, else in host memory"
