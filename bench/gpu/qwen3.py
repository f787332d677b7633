"""A random Qwen3-4B in bf16, with the tokenizer of the tiny model."""

from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from prorl_service.inference.reference_engine.tiny import build_tiny_model

WEIGHTS = "model.safetensors"


def write(directory: Path) -> None:
    build_tiny_model(directory)
    small = Qwen3Config.from_pretrained(directory)
    config = Qwen3Config(
        vocab_size=151_936,
        hidden_size=2560,
        intermediate_size=9728,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        max_position_embeddings=40_960,
        eos_token_id=small.eos_token_id,
        pad_token_id=small.pad_token_id,
        dtype="bfloat16",
    )
    (directory / WEIGHTS).unlink()
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(directory, max_shard_size="20GB")
    del model
    torch.cuda.empty_cache()
