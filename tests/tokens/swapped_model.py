"""A model whose tokenizer has the same size as another's but gives other ids."""

import json
import shutil
from pathlib import Path


def with_tokens_swapped(model: Path, target: Path) -> Path:
    """Returns a copy of `model` in which the ids of two letters are swapped."""
    shutil.copytree(model, target)
    file = target / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(tokenizer))
    return target
