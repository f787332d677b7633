"""A tokenizer whose tokens are bytes, with Qwen3's chat template, for scripted replies.

It is the default where no model is named: no download is needed, any text can be written, and
agents see the prompts and tool calls of a common family. Counts of tokens are counts of bytes.
"""

import json
from importlib import resources
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

NAME = "bytes"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write(directory: Path) -> None:
    """Writes the files that `ChatFormat.load` reads."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: id_ for id_, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL_TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"))
    # Not built by the engine's package, which imports torch.
    template = resources.files("prorl_service.inference").joinpath("reference_engine/qwen3.jinja")
    config = {"eos_token": SPECIAL_TOKENS[-1], "chat_template": template.read_text("utf-8")}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
