"""Sampling of one token for each row of logits, with the row's own parameters and seed.

The draw inverts the distribution function at one uniform number per row, so a seeded request gets
the same tokens whatever else is in the batch. Logprobs are those of the distribution drawn from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from prorl_service.inference.engines.base import UNLIKELY


@dataclass(frozen=True, slots=True)
class DrawParams:
    """`temperature` 0 is greedy, with the logprobs of temperature 1. `top_k` 0 keeps all."""

    temperature: float
    top_p: float
    top_k: int


@torch.inference_mode()
def sample(
    logits: torch.Tensor, params: Sequence[DrawParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """`logits` fp32 [rows, vocab], `uniforms` in [0, 1). Returns token ids and logprobs, [rows]."""
    temperatures = torch.tensor([row.temperature or 1.0 for row in params])
    scores = logits / temperatures[:, None]
    for index, row in enumerate(params):
        if row.temperature and (row.top_k or row.top_p < 1):
            scores[index] = _truncate(scores[index], row)
    logprobs = scores.log_softmax(-1)
    cumulated = logprobs.double().exp().cumsum(-1)
    targets = cumulated[:, -1:] * torch.tensor(uniforms, dtype=torch.float64)[:, None]
    # The first entry above the target has mass of its own, so a cut-off token is never drawn.
    drawn = torch.searchsorted(cumulated, targets, right=True).clamp_(max=logits.shape[1] - 1)
    greedy = torch.tensor([row.temperature == 0 for row in params], dtype=torch.bool)
    chosen = torch.where(greedy[:, None], logprobs.argmax(-1, keepdim=True), drawn)
    chosen_logprobs = logprobs.gather(1, chosen).nan_to_num(UNLIKELY, neginf=UNLIKELY)
    return chosen[:, 0].tolist(), chosen_logprobs[:, 0].tolist()


def _truncate(scores: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """Returns `scores` [vocab] with -inf for what top-k and then top-p cut off."""
    ranked, order = scores.sort(descending=True)
    if params.top_k:
        ranked[params.top_k :] = -torch.inf
    if params.top_p < 1:
        before = ranked.softmax(-1).cumsum(-1).roll(1)
        before[0] = 0.0
        ranked[before >= params.top_p] = -torch.inf
    return torch.empty_like(scores).scatter_(0, order, ranked)
