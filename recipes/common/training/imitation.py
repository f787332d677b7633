"""Policies that begin by imitating transcripts, by cross-entropy (plain torch) on what they are to
say. Recipes supply the transcripts.

A policy has a base, or is made here, for machines without a GPU or a model hub: a Qwen3 of some
hundred thousand parameters with a tokenizer learned from the transcripts. Merges may span words, so
that a system prompt becomes a handful of tokens and a tool call ten; digits stay single. Rollouts
are then short enough to be sampled and trained on in seconds.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel

from prorl_service.agents.base import Prompt
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import Message, Segment
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.ledger import Chain

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Transcript:
    """The model's replies, turn by turn, and the tools' answers between them: one answer fewer."""

    prompt: Prompt
    replies: Sequence[str]
    answers: Sequence[str]

    def segment(self, chat: ChatFormat) -> Segment:
        """Returns exactly the tokens that the service would record; the mask is 1 on the replies.
        Logprobs and policy versions mean nothing."""
        chain = Chain(chat.prompt_ids(self.prompt.messages, tools=self.prompt.tools))
        first, *others = self.replies
        _say(first, chain, chat)
        for answer, reply in zip(self.answers, others, strict=True):
            message = Message(role="tool", content=answer)
            chain.append_context(chat.delta_ids([message], after=chat.end_of_turn_id))
            _say(reply, chain, chat)
        return chain.to_segment()


def _say(text: str, chain: Chain, chat: ChatFormat) -> None:
    ids = [*chat.encode(text), chat.end_of_turn_id]
    chain.append_sampled(ids, [0.0] * len(ids), [0] * len(ids))


def tool_call(name: str, arguments: object) -> str:
    """Writes a tool call as Qwen3's template does."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


@dataclass(frozen=True, slots=True)
class Imitation:
    """Extent of the imitation. `vocab_size`: limit for the tokenizer's, without a base."""

    steps: int
    batch_size: int
    learning_rate: float
    vocab_size: int | None = None
    seed: int = 0


def warm_started(
    cache: Path, transcripts: Sequence[Transcript], config: Imitation, base: Path | None = None
) -> Path:
    """Returns the directory of the trained model and its tokenizer, below `cache`; trains the model
    if it is not there yet. `base`: the directory of the model to begin with.

    The directory's name is a hash of all that the model depends on, so a changed template, tool or
    task makes a new one.
    """
    texts = texts_of(transcripts, base)
    target = cache / f"warm-start-{_digest(config, base, texts)}"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as scratch:
        made = Path(scratch) / "model"
        if base is None:
            assert config.vocab_size is not None
            build(made, texts, vocab_size=config.vocab_size, seed=config.seed)
        else:
            shutil.copytree(base, made)
        chat = ChatFormat.load(made)
        policy = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
        imitate(policy, [one.segment(chat) for one in transcripts], config)
        policy.save_pretrained(made)
        os.rename(made, target)
    return target


def texts_of(transcripts: Sequence[Transcript], base: Path | None = None) -> list[str]:
    """Returns the texts of the transcripts, template included."""
    with TemporaryDirectory() as directory:
        if base is None:
            build_tiny_model(Path(directory))
        chat = ChatFormat.load(base or Path(directory))
    segments = [transcript.segment(chat) for transcript in transcripts]
    return [chat.decode(segment.prompt_ids + segment.response_ids) for segment in segments]


def build(directory: Path, texts: Sequence[str], *, vocab_size: int, seed: int) -> None:
    """Builds a tokenizer for `texts`, and a model with random weights."""
    build_tiny_model(
        directory,
        texts=texts,
        vocab_size=vocab_size,
        initializer_range=0.02,
        use_regex=False,
        seed=seed,
    )


def imitate(policy: PreTrainedModel, segments: Sequence[Segment], config: Imitation) -> None:
    """Trains in place, on sampled tokens alone."""
    optimizer = torch.optim.AdamW(policy.parameters(), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.learning_rate, total_steps=config.steps, pct_start=0.1
    )
    for input_ids, labels in tqdm(_batches(segments, config), "warm start", config.steps):
        is_target = labels != IGNORED
        # Most positions are template: the head's large matrix is only applied where it is needed.
        hidden = policy.model(input_ids=input_ids).last_hidden_state[is_target]
        loss = cross_entropy(policy.lm_head(hidden), labels[is_target])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def _batches(
    segments: Sequence[Segment], config: Imitation
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields `steps` pairs of ids and next-token labels, int64[batch, length]."""
    generator = torch.Generator().manual_seed(config.seed)
    rows = [_row(segment) for segment in segments]
    for _ in range(config.steps):
        chosen = torch.randint(len(rows), (config.batch_size,), generator=generator).tolist()
        yield (
            pad_sequence([rows[index][0] for index in chosen], batch_first=True),
            pad_sequence([rows[index][1] for index in chosen], True, IGNORED),
        )


def _row(segment: Segment) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.tensor(segment.prompt_ids + segment.response_ids)
    is_sampled = torch.tensor([0] * len(segment.prompt_ids) + segment.loss_mask, dtype=torch.bool)
    return ids[:-1], ids.masked_fill(~is_sampled, IGNORED)[1:]


def _digest(config: Imitation, base: Path | None, texts: Sequence[str]) -> str:
    """Hashes the inputs, and the code that builds and trains."""
    inputs = [repr(asdict(config)), base.name if base else "", *texts, Path(__file__).read_text()]
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
