"""Imitation of segments by cross-entropy on what the model said in them: a start for reinforcement
learning. Plain torch, on the model's device. Knows nothing of where segments come from.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from prorl_service.schemas import Segment

IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """Extent of the imitation. `learning_rate`: the highest of a one-cycle schedule."""

    steps: int
    batch_size: int
    learning_rate: float
    seed: int = 0


def imitate(policy: PreTrainedModel, segments: Sequence[Segment], config: Imitation) -> None:
    """Trains in place, on sampled tokens alone. Shows its progress."""
    optimizer = torch.optim.AdamW(policy.parameters(), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.learning_rate, total_steps=config.steps, pct_start=0.1
    )
    progress = tqdm(_batches(segments, config), "warm start", config.steps)
    for input_ids, labels in progress:
        is_target = labels != IGNORED
        # Most positions are template: the head's large matrix is only applied where it is needed.
        hidden = policy.model(input_ids=input_ids).last_hidden_state[is_target]
        loss = cross_entropy(policy.lm_head(hidden), labels[is_target])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        progress.set_postfix_str(f"loss {loss.detach().item():.2f}", refresh=False)


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
