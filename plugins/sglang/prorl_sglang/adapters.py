"""LoRA adapters as SGLang packs and scales them. Knows nothing of SGLang's server."""

import json
import math

import torch

from prorl_service.utils.checkpoint import Shapes

PACKS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one input that SGLang computes as one: of a pack, it needs all or none."""
ROOT = "base_model.model."


def completed(matrices: dict[str, torch.Tensor], shapes: Shapes) -> dict[str, torch.Tensor]:
    """Returns the matrices, and zeros for layers that are packed with theirs. `shapes`: those of
    the model's own weights; a layer that is not among them is left out."""
    complete = dict(matrices)
    for name, matrix in matrices.items():
        layer, _, which = name.rpartition(".lora_")
        block, _, own = layer.rpartition(".")
        for other in {one for pack in PACKS if own in pack for one in pack}:
            shape = shapes.get(f"{block.removeprefix(ROOT)}.{other}.weight")
            if shape is not None:
                size = matrix.shape if which.startswith("A") else (shape[0], matrix.shape[1])
                complete.setdefault(f"{block}.{other}.lora_{which}", matrix.new_zeros(size))
    return complete


def rescaled(config: str) -> str:
    """Returns the text of an adapter_config.json whose `lora_alpha` has the rank's stabilisation,
    which SGLang ignores."""
    options = json.loads(config)
    if options.get("use_rslora"):
        alpha = options["lora_alpha"] * math.sqrt(options["r"])
        options |= {"lora_alpha": alpha, "use_rslora": False}
    return json.dumps(options)
