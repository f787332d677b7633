"""A model as base models are: its EOS token is not the one that ends turns of its template."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"


def with_split_eos(model: Path, target: Path) -> Path:
    """Returns a copy of a tiny model that ends texts by `END_OF_TEXT`, and often samples
    `END_OF_TURN`, which its template writes."""
    shutil.copytree(model, target)
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    for name in ("config.json", "generation_config.json"):
        _edit(target / name, eos_token_id=tokenizer.token_to_id(END_OF_TEXT))
    _edit(target / "tokenizer_config.json", eos_token=END_OF_TEXT)
    weights = load_file(target / "model.safetensors")
    weights["model.embed_tokens.weight"][tokenizer.token_to_id(END_OF_TURN)] *= -5
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    return target


def _edit(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
