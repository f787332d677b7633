"""Inference as the rest of the service sees it: one call, token ids in, token ids out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from prorl_service.schemas import EngineTimes, LogprobsMode, Sampling, StopReason


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
    labels: frozenset[str] = frozenset()
    """Labels of the weights that sampled it; empty if the engine keeps none."""
    logprobs_mode: LogprobsMode = "processed"
    policy: str | None = None
    """Name of a model behind an API, whose text this is; None: the engine sampled the ids."""
    times: EngineTimes | None = None
    """The engine's own; None if its answers do not tell."""

    def until(self, tokens: int) -> "Generation":
        """Returns the answer of an engine that stopped after so many tokens."""
        return replace(
            self,
            token_ids=self.token_ids[:tokens],
            logprobs=self.logprobs[:tokens],
            policy_versions=self.policy_versions[:tokens],
            finish_reason="stop",
        )


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
        stop: Sequence[str] = (),
        pictures: Sequence[bytes] = (),
    ) -> Generation:
        """`stop`: texts at which the engine may stop; some sample on. `pictures`: those of the
        prompt, in their order. Raises `BackendError`; its `retryable` says whether a retry can
        help."""
