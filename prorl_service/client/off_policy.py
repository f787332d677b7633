"""Tripwire for a training whose tokens are not of the policy that it trains.

A trainer computes the logprob of each sampled token again. Engine and trainer with one policy agree
up to the noise of their types; where they do not, the trainer learns from another policy's tokens,
whatever the reason is. Pure: plug-ins say which steps count and which causes are possible. It
replaces no exact check, since a small learning rate hides a wrong policy in that noise for a while.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from prorl_service.errors import ProRLError

FIRST_STEPS = 3
"""Steps by which a run shows the noise of its own engine and trainer."""
TIMES_FIRST = 10.0
"""Ratio to the least difference of the run's first steps that is not noise any more."""
FLOOR_NATS = 0.01
"""Mean difference below which no step is warned about: rounding in bf16 shows as much."""
WARN_NATS = 0.1
"""Mean difference that is warned about whatever the first steps showed."""
STOP_NATS = 1.0
"""Mean difference that ends training: a sampled token is e times more or less probable."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason for a difference, with its cure, as one line.

    `at_once`: it shows in a run's very first step. `later`: it can begin after a step without it.
    """

    text: str
    at_once: bool = True
    later: bool = True


ANOTHER_RUN = Cause(
    "another training or a person gave the engines other weights: use one service for each training"
)
NOT_SENT = Cause(
    "not all of the policy reaches the engines: compare what is trained with what was sent"
)
LOGPROBS_MODE = Cause(
    "the engines answer with raw logprobs: start vLLM with `--logprobs-mode processed_logprobs`",
    later=False,
)
TEMPERATURE = Cause(
    "engine and trainer divide logits by different temperatures: make `Sampling.temperature` and "
    "the trainer's equal"
)
TIED_HEAD = Cause(
    "head and embeddings are one matrix in the engines and are trained apart: "
    "`LoraConfig(ensure_weight_tying=True)`",
    at_once=False,
)
ROWS_CHANGED = Cause(
    "something between the rollouts and the loss changes, moves or cuts tokens: a subclass of the "
    "trainer, a patch, a collator"
)
DROPOUT = Cause("the trainer computes logprobs with dropout: set `lora_dropout` and others to 0")
CUT_OFF = Cause(
    "`Sampling.top_p` or `top_k` cuts tokens off, which the trainer's logprobs do not know: leave "
    "them out",
    later=False,
)
OTHER_FORWARD = Cause(
    "trainer and engine compute the model by different code: a patch, a fused kernel, experts that "
    "are chosen differently"
)
QUANTISED = Cause(
    "engine or trainer holds its base in fewer bits than the other: load both in one type",
    later=False,
)


class PolicyDiffers(ProRLError):
    """The tokens of a step were not sampled by the policy that trains on them."""


@dataclass(slots=True)
class OffPolicyWatch:
    """Judge of the mean |logprob of the engine - logprob of the trainer| of each step, in nats."""

    causes: Sequence[Cause]
    """Causes that this training does not exclude."""
    first: list[float] = field(default_factory=list)
    """Mean differences of the run's first steps."""
    warned_nats: float = 0.0
    """Largest difference that was warned about."""

    def add(self, mean_nats: float, max_nats: float | None = None, *, step: int) -> str | None:
        """Takes a step whose unmasked tokens are all of the newest policy. Returns a warning, once
        and again each time that the difference has doubled. Raises `PolicyDiffers`."""
        causes = [one.text for one in self.causes if (one.later if self.first else one.at_once)]
        hint = "what fits:" + "".join(f"\n  - {text}" for text in causes)
        message = self._message(mean_nats, max_nats, step)
        if not mean_nats < STOP_NATS:  # NaN, too
            raise PolicyDiffers(f"{message} Training on them is stopped.", hint=hint)
        is_above = mean_nats > self.bound_nats
        if len(self.first) < FIRST_STEPS:
            self.first.append(mean_nats)
        if not is_above or mean_nats < 2 * self.warned_nats:
            return None
        self.warned_nats = mean_nats
        return f"{message} {hint}"

    @property
    def bound_nats(self) -> float:
        """Mean difference above which the next step is warned about."""
        if not self.first:
            return WARN_NATS
        return min(WARN_NATS, max(FLOOR_NATS, TIMES_FIRST * min(self.first)))

    def _message(self, mean_nats: float, max_nats: float | None, step: int) -> str:
        largest = "" if max_nats is None else f", at most {max_nats:.3g}"
        own = f"; {min(self.first):.2g} in the run's first steps" if self.first else ""
        if math.isnan(mean_nats):
            return f"step {step}: the trainer's logprobs of the sampled tokens are not numbers."
        return (
            f"step {step}: engine and trainer differ by {mean_nats:.3g} nats a token on average"
            f"{largest}{own}: these tokens are not of the policy that is trained."
        )
