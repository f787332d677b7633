"""Policies that begin by imitating transcripts, which recipes supply.

A policy has a base, or is made here, for machines without a GPU or a model hub: a Qwen3 of some
hundred thousand parameters with a tokenizer learned from the transcripts. Merges may span words, so
that a system prompt becomes a handful of tokens and a tool call ten; digits stay single. Rollouts
are then short enough to be sampled and trained on in seconds.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from prorl_service.agents.base import Prompt
from prorl_service.inference.reference_engine import imitation
from prorl_service.inference.reference_engine.imitation import Imitation, imitate
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import Message, Segment
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.ledger import Chain
from prorl_service.utils.files import publish


@dataclass(frozen=True, slots=True)
class Transcript:
    """The model's replies, turn by turn, and the answers between them, one fewer: a tool's, as
    text, or a message."""

    prompt: Prompt
    replies: Sequence[str]
    answers: Sequence[str | Message]

    def segment(self, chat: ChatFormat) -> Segment:
        """Returns exactly the tokens that the service would record; the mask is 1 on the replies.
        Logprobs and policy versions mean nothing."""
        chain = Chain(chat.prompt_ids(self.prompt.messages, tools=self.prompt.tools))
        first, *others = self.replies
        _say(first, chain, chat)
        for answer, reply in zip(self.answers, others, strict=True):
            message = answer if isinstance(answer, Message) else _result(answer)
            chain.append_context(chat.delta_ids([message], after=chat.end_of_turn_id))
            _say(reply, chain, chat)
        return chain.to_segment()


def _result(text: str) -> Message:
    return Message(role="tool", content=text)


def _say(text: str, chain: Chain, chat: ChatFormat) -> None:
    ids = chat.reply_ids(text)
    chain.append(ids, [0.0] * len(ids), [0] * len(ids))


def tool_call(name: str, arguments: object) -> str:
    """Writes a tool call as Qwen3's template does."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def warm_started(
    cache: Path,
    transcripts: Sequence[Transcript],
    config: Imitation,
    base: Path | int,
    *,
    sees: bool = False,
) -> Path:
    """Returns the directory of the trained model and its tokenizer, below `cache`; trains the model
    if it is not there yet. `base`: the directory of the model to begin with, or the largest
    vocabulary of a new one. `sees`: the model has vision, which this leaves as it is.

    The directory's name is a hash of all that the model depends on, so a changed template, tool or
    task makes a new one.
    """
    texts = texts_of(transcripts, base, sees=sees)
    target = cache / f"warm-start-{_digest(config, base, texts)}"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as scratch:
        made = Path(scratch) / "model"
        if isinstance(base, Path):
            shutil.copytree(base, made)
        else:
            build(made, texts, vocab_size=base, seed=config.seed, sees=sees)
        chat = ChatFormat.load(made)
        kind: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        policy = kind.from_pretrained(made, dtype=torch.float32)
        imitate(policy, [_padded(one.segment(chat), chat) for one in transcripts], config)
        policy.save_pretrained(made)
        publish(made, target)
    return target


def _padded(segment: Segment, chat: ChatFormat) -> Segment:
    if chat.pictures is not None:
        segment.prompt_ids = chat.pictures.padded(segment.prompt_ids)
        segment.response_ids = chat.pictures.padded(segment.response_ids)
    return segment


def texts_of(
    transcripts: Sequence[Transcript], base: Path | int, *, sees: bool = False
) -> list[str]:
    """Returns the texts of the transcripts, template included."""
    with TemporaryDirectory() as directory:
        if not isinstance(base, Path):
            base = Path(directory)
            build_tiny_model(base, sees=sees)
        chat = ChatFormat.load(base)
    segments = [transcript.segment(chat) for transcript in transcripts]
    return [chat.decode(segment.prompt_ids + segment.response_ids) for segment in segments]


def build(
    directory: Path, texts: Sequence[str], *, vocab_size: int, seed: int, sees: bool = False
) -> None:
    """Builds a tokenizer for `texts`, and a model with random weights."""
    build_tiny_model(
        directory,
        texts=texts,
        vocab_size=vocab_size,
        initializer_range=0.1 if sees else 0.02,  # with less, it hardly learns to see
        use_regex=False,
        seed=seed,
        sees=sees,
    )


def _digest(config: Imitation, base: Path | int, texts: Sequence[str]) -> str:
    """Hashes the inputs, and the code that builds and trains."""
    inputs = [repr(asdict(config)), base.name if isinstance(base, Path) else str(base), *texts]
    inputs += [Path(file).read_text() for file in (__file__, imitation.__file__)]
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
