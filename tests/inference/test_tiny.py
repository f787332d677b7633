"""The tiny models, and our rendering of Qwen3's chat template."""

from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from prorl_service.inference.reference_engine.tiny import build_tiny_model

TEXT = "<|im_start|>user\nHello 1234  the sum\n\n<tool_call>é日本\x00</tool_call><|im_end|>\n"


def test_a_tokenizer_is_qwen_like_and_loses_nothing(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    ids = tokenizer(TEXT).input_ids
    assert ids == Tokenizer.from_file(str(tiny_model / "tokenizer.json")).encode(TEXT).ids
    assert tokenizer.decode(ids) == TEXT
    kept = TEXT.replace("<|im_start|>", "").replace("<|im_end|>", "")
    assert tokenizer.decode(ids, skip_special_tokens=True) == kept
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


@pytest.mark.parametrize("tied", [True, False])
def test_the_model_knows_more_ids_than_the_tokenizer(tmp_path: Path, tied: bool) -> None:
    build_tiny_model(tmp_path, vocab_size=300, hidden_size=32, layers=1, tie_word_embeddings=tied)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert (len(tokenizer), model.config.vocab_size) == (300, 320)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_texts_become_tokens_as_large_as_templates(tmp_path: Path) -> None:
    template = 'assistant\n<tool_call>\n{"name": "add", "arguments": {"left": 12}}\n</tool_call>'
    build_tiny_model(tmp_path, texts=[template] * 50, vocab_size=400, use_regex=False)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    pieces = [tokenizer.decode(token) for token in tokenizer(template).input_ids]
    assert '\n{"name": "add", "arguments": {"left": ' in pieces
    assert pieces.count("1") == pieces.count("2") == 1


TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
CALLS = [
    {"type": "function", "function": {"name": "bash", "arguments": {"command": "ls\n<é>"}}},
    {"name": "submit", "arguments": '{"answer": 1}'},
]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Why?"}
TOOL = {"role": "tool", "content": "out"}


def _assistant(content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [SYSTEM],
    [{"role": "system", "content": ""}, USER],
    [SYSTEM, USER, _assistant("So."), USER],
    [USER, _assistant("<think>\nhm\n</think>\n\nSo."), USER],
    [USER, _assistant("<think>\n\n</think>\n\nSo."), TOOL, _assistant("x\n")],
    [SYSTEM, USER, _assistant("<think>\nhm\n</think>\n\nSo.", tool_calls=CALLS), TOOL, TOOL, USER],
    [USER, _assistant("", tool_calls=CALLS), TOOL, _assistant("\nSo.", reasoning_content="hm\n")],
    [USER, _assistant(None, tool_calls=CALLS[:1]), TOOL],
    [USER, {"role": "user", "content": "<tool_response>x</tool_response>"}, _assistant("a")],
    [_assistant("a"), SYSTEM, _assistant("b")],
]


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_the_template_renders_as_that_of_qwen3(
    tiny_model: Path, conversation: list[dict[str, Any]]
) -> None:
    qwen3 = resources.files("trl").joinpath("chat_templates/qwen3.jinja").read_text()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    for tools, prompt, thinking in product([None, TOOLS], [True, False], [True, False]):
        ours, theirs = (
            tokenizer.apply_chat_template(
                conversation,
                tools=tools,
                add_generation_prompt=prompt,
                enable_thinking=thinking,
                chat_template=template,
                tokenize=False,
            )
            for template in (None, qwen3)
        )
        assert ours == theirs
