"""Inference as the rest of the service sees it: one call, token ids in, token ids out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from prorl_service.schemas import LogprobsMode, Sampling, StopReason


@dataclass(frozen=True, slots=True)
class Generation:
    """The answer to one call. The three arrays have one entry per sampled token, EOS included.

    `logprobs`: nats under the sampling distribution. `policy_versions`: weights that sampled it.
    """

    token_ids: list[int]
    logprobs: list[float]
    policy_versions: list[int]
    finish_reason: StopReason
    cached_tokens: int
    backend: str
    logprobs_mode: LogprobsMode = "processed"


class Generator(Protocol):
    """Generates for one rollout, whose calls stay at one backend where possible."""

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int | None,
        stop_token_ids: list[int],
    ) -> Generation:
        """Raises `BackendError`; its `retryable` says whether a retry can help."""
