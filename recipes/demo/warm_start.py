"""Supervised start of the demo's policy: after it, rollouts are well formed and mostly wrong.

Plain torch: cross-entropy on the model's own tokens of `demonstrations`. The result is cached under
a hash of all that it depends on, so a changed template, tool or task makes a new one.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import Qwen3ForCausalLM

from prorl_service.schemas import Segment
from prorl_service.tokens.chat import ChatFormat
from recipes.demo import model
from recipes.demo.demonstrations import demonstrations

IGNORED = -100


@dataclass(frozen=True, slots=True)
class WarmStart:
    """How long to imitate. The defaults copy a number right 99 times in 100."""

    demonstrations: int = 2000
    steps: int = 600
    batch_size: int = 32
    learning_rate: float = 6e-3
    seed: int = 0


def warm_started(cache: Path, config: WarmStart = WarmStart()) -> Path:
    """Directory of the trained model with its tokenizer, below `cache`; made if not there yet."""
    examples = demonstrations(config.demonstrations, seed=config.seed)
    texts = model.transcripts(examples)
    target = cache / f"warm-start-{_digest(config, texts)}"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as scratch:
        made = Path(scratch) / "model"
        model.build(made, texts, seed=config.seed)
        chat = ChatFormat.load(made)
        policy = Qwen3ForCausalLM.from_pretrained(made, dtype=torch.float32)
        imitate(policy, [example.segment(chat) for example in examples], config)
        policy.save_pretrained(made)
        os.rename(made, target)
    return target


def imitate(policy: Qwen3ForCausalLM, segments: Sequence[Segment], config: WarmStart) -> None:
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
    segments: Sequence[Segment], config: WarmStart
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """`steps` pairs of ids and next-token labels, int64[batch, length]."""
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


def _digest(config: WarmStart, texts: Sequence[str]) -> str:
    """Also covers the code that builds and trains."""
    inputs = [repr(asdict(config)), *texts]
    inputs += [Path(module).read_text() for module in (__file__, model.__file__)]
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
