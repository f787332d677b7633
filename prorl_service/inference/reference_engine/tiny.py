"""Random-weight Qwen3 and Qwen2.5-VL models with a tokenizer of their own, for tests, demos and
benchmarks.

They are as hostile as a real policy can get: a random model samples ids that the tokenizer does not
know and text that never survives decode-then-encode. Nothing here trains a model.
"""

import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PATCH, MERGE = 14, 2
"""Side of a patch in pixels, and of a token in patches."""
MAX_PICTURE_TOKENS = 64
PLAIN_ADDED_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
HEAD_DIM = 32  # the smallest that vLLM's CPU attention takes

CORPUS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n",
    '{"type": "function", "function": {"name": "bash", "description": "Run a command.", '
    '"parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}',
    "</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n",
    '\n{"name": "bash", "arguments": {"command": "ls -la /testbed && cat setup.py | head -50"}}\n',
    '\n{"name": "submit", "arguments": {"answer": "the sum of 12 and 30 is 42"}}\n',
    "system\nYou are a careful engineer. Fix the bug, run the tests, then submit.",
    "user\nWhat is 17 times 3? Think first, then give the final answer in \\boxed{}.",
    "assistant\nLet me look at the files in the repository before changing anything.\n",
    "def add(left, right):\n    return left + right\n\n\nassert add(2, 40) == 42\n",
)


def build_tiny_model(
    directory: Path,
    *,
    texts: Sequence[str] = (),
    vocab_size: int = 320,
    hidden_size: int = 64,
    layers: int = 2,
    tie_word_embeddings: bool = False,
    initializer_range: float = 0.2,
    use_regex: bool = True,
    max_position_embeddings: int = 4096,
    seed: int = 0,
    sees: bool = False,
) -> None:
    """Writes config, fp32 weights, tokenizer and Qwen3's chat template into `directory`.

    The tokenizer has at most `vocab_size` entries, including all 256 bytes and the added tokens;
    the model has more, so it can sample ids that the tokenizer does not know. Merges are learned
    from `texts`, too; with `use_regex=False` a merge may span words and lines, which makes tokens
    as large as the templates in `texts`. The default `initializer_range` is large enough for peaked
    distributions (0.02 gives near-uniform ones). `sees`: a Qwen2.5-VL, with its processor, whose
    template takes contents in parts.
    """
    added = [*SPECIAL_TOKENS, *(VISION_TOKENS if sees else ())]
    tokenizer = _train_tokenizer([*CORPUS, *texts], vocab_size, added, use_regex=use_regex)
    tokenizer.chat_template = chat_template(sees=sees)
    tokenizer.save_pretrained(directory)
    heads = hidden_size // 16
    text = {
        "vocab_size": (len(tokenizer) // 64 + 1) * 64,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "tie_word_embeddings": tie_word_embeddings,
        "initializer_range": initializer_range,
        "max_position_embeddings": max_position_embeddings,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = _seeing(text, tokenizer, directory) if sees else _reading(text)
    # No sampling defaults: engines would apply them to requests that do not name their own.
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(directory)


def _reading(text: dict[str, Any]) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM(Qwen3Config(**text, head_dim=HEAD_DIM))


def _seeing(
    text: dict[str, Any], tokenizer: PreTrainedTokenizerFast, directory: Path
) -> Qwen2_5_VLForConditionalGeneration:
    """Writes the processor's file, too."""
    side = PATCH * MERGE
    processor = Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        min_pixels=side**2,
        max_pixels=MAX_PICTURE_TOKENS * side**2,
    )
    processor.save_pretrained(directory)
    heads = text["hidden_size"] // HEAD_DIM  # its heads have this size, as those of Qwen3 do
    text |= {"num_attention_heads": heads, "num_key_value_heads": max(1, heads // 2)}
    quarter = HEAD_DIM // 8
    sections = [quarter, HEAD_DIM // 4 - quarter // 2, HEAD_DIM // 4 - quarter // 2]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
    vision = {
        "depth": 2,
        "hidden_size": text["hidden_size"],
        "intermediate_size": 2 * text["hidden_size"],
        "num_heads": heads,
        "out_hidden_size": text["hidden_size"],
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "window_size": 4 * side,
        "fullatt_block_indexes": [1],
    }
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    ids = dict(zip(names, tokenizer.convert_tokens_to_ids([*VISION_TOKENS]), strict=True))
    config = Qwen2_5_VLConfig(
        text_config={**text, "rope_parameters": rope}, vision_config=vision, **ids
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def _train_tokenizer(
    texts: Sequence[str], vocab_size: int, special: Sequence[str], *, use_regex: bool
) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(special) - len(PLAIN_ADDED_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_without_added_tokens(texts), trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in PLAIN_ADDED_TOKENS])
    end_of_text, start_of_turn, end_of_turn, *of_vision = special
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end_of_turn,
        pad_token=end_of_text,
        extra_special_tokens=[start_of_turn, *of_vision],
        clean_up_tokenization_spaces=False,
    )


def _without_added_tokens(texts: Sequence[str]) -> Iterator[str]:
    """Cuts added tokens out, as encoding does before it merges: no merge may span them."""
    pattern = "|".join(map(re.escape, SPECIAL_TOKENS + PLAIN_ADDED_TOKENS))
    for text in texts:
        yield from re.split(pattern, text)


def chat_template(*, sees: bool) -> str:
    files = [*(["parts.jinja"] if sees else []), "qwen3.jinja"]
    package = resources.files(__package__)
    return "".join(package.joinpath(name).read_text(encoding="utf-8") for name in files)
