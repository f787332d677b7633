"""The demo's policy: a Qwen3 of 0.2 million parameters, and a tokenizer made for its tasks.

The tokenizer is learned from demonstrations and may merge across words, so the system prompt
becomes a handful of tokens and a tool call ten; digits stay single. A rollout is then some fifty
tokens long, which is what lets so small a model learn in a minute on a CPU.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from prorl_service.inference.engine.tiny import build_tiny_model
from prorl_service.tokens.chat import ChatFormat
from recipes.demo.demonstrations import Demonstration

VOCAB_SIZE = 1024
"""More than the merges that the demonstrations support (about 600)."""


def build(directory: Path, texts: Sequence[str], *, seed: int) -> None:
    """Random weights; `texts` are `transcripts`."""
    build_tiny_model(
        directory,
        texts=texts,
        vocab_size=VOCAB_SIZE,
        initializer_range=0.02,
        use_regex=False,
        seed=seed,
    )


def transcripts(demonstrations: Sequence[Demonstration]) -> list[str]:
    """The demonstrations as text, template and all."""
    with TemporaryDirectory() as directory:
        build_tiny_model(Path(directory))
        chat = ChatFormat.load(Path(directory))
    segments = [demonstration.segment(chat) for demonstration in demonstrations]
    return [chat.decode(segment.prompt_ids + segment.response_ids) for segment in segments]
