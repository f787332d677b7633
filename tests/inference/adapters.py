"""LoRA adapters of a tiny model, as files, and as checkpoints into which they are merged."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from prorl_service.schemas import ADAPTER_CONFIG

RANK, ALPHA = 4, 8
LAYERS = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
CONFIG = {
    "peft_type": "LORA",
    "r": RANK,
    "lora_alpha": ALPHA,
    "target_modules": [layer.rpartition(".")[2] for layer in LAYERS],
    "bias": "none",
}


def make_adapter(base: Path, directory: Path, *, seed: int) -> tuple[Path, Path]:
    """Returns the adapter's file, and the checkpoint of `base` with the adapter merged in."""
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(base / "model.safetensors")
    matrices: dict[str, torch.Tensor] = {}
    for name in [one for one in weights if one.removesuffix(".weight").endswith(LAYERS)]:
        outputs, inputs = weights[name].shape
        first = torch.randn(RANK, inputs, generator=generator) / 8
        second = torch.randn(outputs, RANK, generator=generator) / 8
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        matrices |= {f"{layer}.lora_A.weight": first, f"{layer}.lora_B.weight": second}
        weights[name] = weights[name] + ALPHA / RANK * second @ first
    assert len(matrices) == 2 * 2 * len(LAYERS)
    merged, file = directory / f"merged-{seed}", directory / f"adapter-{seed}.safetensors"
    shutil.copytree(base, merged, ignore=shutil.ignore_patterns("*.safetensors", "log*"))
    save_file(weights, merged / "model.safetensors", {"format": "pt"})
    save_file(matrices, file, {ADAPTER_CONFIG: json.dumps(CONFIG)})
    return file, merged
