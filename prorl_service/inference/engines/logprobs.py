"""Whether an engine's logprobs are of the distribution that it samples from, as training needs.

An engine that does not say so is asked for a few tokens. At a low temperature the logprobs of that
distribution are about 0, and at a high one they are all alike. The model's own are not about 0
unless it is nearly certain of its tokens; then they are not alike.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from statistics import median

from prorl_service.errors import BackendRejected
from prorl_service.inference.engines.base import ROUNDING
from prorl_service.schemas import LogprobsMode

PROCESSED = "processed_logprobs"
"""vLLM's name of the mode that training needs."""
LOW, HIGH = 0.01, 1000.0
"""Temperatures; vLLM goes no lower."""
PROBED_TOKENS = 8
MAX_PROMPTS = 4
MAX_PROMPT_ID = 256
PROMPT_TOKENS = 6
NEARLY_ZERO = -0.3
"""Least median at the low temperature that may be of the distribution sampled from."""
ALIKE = 0.5
"""Largest difference of logprobs at the high temperature that may be."""
MAX_TIED = 4
"""Most tokens of equal likelihood: models that compute in bfloat16 often have ties."""

Ask = Callable[[list[int], float], Awaitable[list[float]]]
"""Returns the logprobs of tokens sampled after a prompt, at a temperature."""


def require_processed(url: str, mode: str, hint: str) -> None:
    """Raises `BackendRejected` unless `mode`, by vLLM's name, is the one that training needs.
    `hint`: how to start the engine so that it is."""
    if mode != PROCESSED:
        raise BackendRejected(
            f"{url} gives {mode}, which are not of the distribution that it samples from", hint=hint
        )


async def probed(url: str, ask: Ask, vocab_size: int, hint: str) -> LogprobsMode:
    """Returns "unknown" if no prompt shows the mode. Raises `BackendError`: `BackendRejected`, with
    `hint`, if it is another than training needs."""
    for number in range(MAX_PROMPTS):
        prompt = _prompt(number, min(vocab_size, MAX_PROMPT_ID))
        low = await ask(prompt, LOW)
        if _are_of_the_model(low):
            require_processed(url, "raw logprobs (as a probe shows)", hint)
        if low and median(low) >= NEARLY_ZERO and _are_alike(await ask(prompt, HIGH)):
            return "processed"
    return "unknown"


def _prompt(number: int, end: int) -> list[int]:
    return [(41 * number + 37 * place + 11) % end for place in range(PROMPT_TOKENS)]


def _are_of_the_model(low: Sequence[float]) -> bool:
    if not low or not math.isfinite(sum(low)):
        return False
    tied = sum(_is_tie(one) for one in low)
    middle = median(low)
    return middle > ROUNDING or (middle < NEARLY_ZERO and 2 * tied <= len(low))


def _is_tie(logprob: float) -> bool:
    """Returns whether it is that of one of a few equally likely tokens."""
    return any(abs(logprob + math.log(count)) < ROUNDING for count in range(1, MAX_TIED + 1))


def _are_alike(high: Sequence[float]) -> bool:
    """Returns whether they may be of many tokens, all nearly equally likely."""
    return len(high) > 1 and max(high) <= -ALIKE and max(high) - min(high) < ALIKE
