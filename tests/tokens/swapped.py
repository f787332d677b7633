"""A model whose tokenizer has the size of another's and gives other ids."""

import json
import shutil
from pathlib import Path


def with_tokens_swapped(model: Path, target: Path) -> Path:
    """A copy of `model` in which the ids of two letters are exchanged."""
    shutil.copytree(model, target)
    file = target / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(tokenizer))
    return target
