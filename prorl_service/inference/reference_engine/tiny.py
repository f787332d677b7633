"""Random-weight Qwen3 models with a tokenizer of their own, for tests, demos and benchmarks.

They are as hostile as a real policy can get: a random model samples ids that the tokenizer does not
know and text that never survives decode-then-encode. Nothing here trains a model.
"""

import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
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
) -> None:
    """Writes config, fp32 weights, tokenizer and Qwen3's chat template into `directory`.

    The tokenizer has at most `vocab_size` entries, including all 256 bytes and the added tokens;
    the model has more, so it can sample ids that the tokenizer does not know. Merges are learned
    from `texts`, too; with `use_regex=False` a merge may span words and lines, which makes tokens
    as large as the templates in `texts`. The default `initializer_range` is large enough for peaked
    distributions (0.02 gives near-uniform ones).
    """
    tokenizer = _train_tokenizer([*CORPUS, *texts], vocab_size, use_regex=use_regex)
    tokenizer.save_pretrained(directory)
    heads = hidden_size // 16
    config = Qwen3Config(
        vocab_size=(len(tokenizer) // 64 + 1) * 64,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=HEAD_DIM,
        tie_word_embeddings=tie_word_embeddings,
        initializer_range=initializer_range,
        max_position_embeddings=max_position_embeddings,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    # No sampling defaults: engines would apply them to requests that do not name their own.
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(directory)


def _train_tokenizer(
    texts: Sequence[str], vocab_size: int, *, use_regex: bool
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
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(PLAIN_ADDED_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_without_added_tokens(texts), trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in PLAIN_ADDED_TOKENS])
    end_of_text, _, end_of_turn = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end_of_turn,
        pad_token=end_of_text,
        extra_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        chat_template=chat_template(),
    )


def _without_added_tokens(texts: Sequence[str]) -> Iterator[str]:
    """Cuts added tokens out, as encoding does before it merges: no merge may span them."""
    pattern = "|".join(map(re.escape, SPECIAL_TOKENS + PLAIN_ADDED_TOKENS))
    for text in texts:
        yield from re.split(pattern, text)


def chat_template() -> str:
    return resources.files(__package__).joinpath("qwen3.jinja").read_text(encoding="utf-8")
