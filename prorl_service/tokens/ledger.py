"""The append-only token chains of one rollout.

A call is recorded whole, after it succeeded, with the exact prompt that the engine saw. So a chain
cannot differ from what was seen, and a failed call leaves no trace. A prompt that starts with a
whole chain extends it (the longest, if there are several), the rest being context. Any other prompt
(history compacted, reasoning stripped, a turn retried with the same prompt) opens a new chain, a
`Segment` on the wire. Knows nothing of text, templates or tools.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from prorl_service.schemas import NOT_SAMPLED, Segment


@dataclass(frozen=True, slots=True)
class Span:
    """Place of one call's sampled tokens: `segments[segment].response_ids[start:stop]`."""

    segment: int
    start: int
    stop: int


class Chain:
    """Ids of one growing sequence and, after the prompt, the origin and logprob of each."""

    __slots__ = ("_logprobs", "_versions", "ids", "prompt_len")

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self.ids = array("i", prompt_ids)
        self.prompt_len = len(prompt_ids)
        self._logprobs = array("f")
        self._versions = array("i")

    @property
    def response_len(self) -> int:
        return len(self.ids) - self.prompt_len

    @property
    def versions(self) -> set[int]:
        """Policy versions of sampled tokens."""
        return set(self._versions) - {NOT_SAMPLED}

    def is_prefix_of(self, prompt_ids: "array[int]") -> bool:
        return prompt_ids[: len(self.ids)] == self.ids

    def append_context(self, ids: Sequence[int]) -> None:
        self.append(ids, [0.0] * len(ids), [NOT_SAMPLED] * len(ids))

    def append(
        self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
    ) -> None:
        self.ids.extend(ids)
        self._logprobs.extend(logprobs)
        self._versions.extend(versions)

    def part(self, start: int, stop: int) -> "tuple[array[int], array[float], array[int]]":
        """Returns ids, logprobs and versions of `response_ids[start:stop]`."""
        ids = self.ids[self.prompt_len + start : self.prompt_len + stop]
        return ids, self._logprobs[start:stop], self._versions[start:stop]

    def to_segment(self) -> Segment:
        return Segment(
            prompt_ids=self.ids[: self.prompt_len].tolist(),
            response_ids=self.ids[self.prompt_len :].tolist(),
            loss_mask=[int(version != NOT_SAMPLED) for version in self._versions],
            logprobs=self._logprobs.tolist(),
            policy_versions=self._versions.tolist(),
        )


class Ledger:
    """All model calls of one rollout."""

    def __init__(self) -> None:
        self.chains: list[Chain] = []
        self._current: Chain | None = None

    @classmethod
    def seen(cls, segments: Sequence[Segment]) -> Self:
        """Returns a ledger with the ids of these segments, none of them sampled."""
        ledger = cls()
        for segment in segments:
            chain = Chain(segment.prompt_ids)
            chain.append_context(segment.response_ids)
            ledger.chains.append(chain)
        return ledger

    @property
    def ids(self) -> "array[int]":
        """Current chain: what the engine saw last, and what it sampled; empty before that.

        A copy of bytes: a turn makes no objects of earlier ids.
        """
        return self._current.ids[:] if self._current else array("i")

    def before(self, segment: int, start: int) -> "array[int]":
        """Returns the ids of a segment up to `response_ids[start]`."""
        chain = self.chains[segment]
        return chain.ids[: chain.prompt_len + start]

    def sampled(self, span: Span) -> "tuple[array[int], array[float], array[int]]":
        """Returns the ids, logprobs and policy versions of one call's sampled tokens."""
        return self.chains[span.segment].part(span.start, span.stop)

    def record(
        self,
        prompt_ids: Sequence[int],
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        policy_versions: Sequence[int],
    ) -> Span:
        """Enters one answered call. Tokens of the version `NOT_SAMPLED` are masked.

        Raises `ValueError` on unequal lengths and `OverflowError` for what int32 or float32 cannot
        hold, and then records nothing.
        """
        if not len(token_ids) == len(logprobs) == len(policy_versions):
            raise ValueError("ids, logprobs and policy versions must have the same length")
        token_ids, policy_versions = array("i", token_ids), array("i", policy_versions)
        logprobs = array("f", logprobs)
        chain = self._current = self._chain_for(array("i", prompt_ids))
        start = chain.response_len
        chain.append(token_ids, logprobs, policy_versions)
        return Span(self.chains.index(chain), start, chain.response_len)

    def _chain_for(self, prompt_ids: "array[int]") -> Chain:
        extended = [chain for chain in self.chains if chain.is_prefix_of(prompt_ids)]
        if not extended:
            self.chains.append(Chain(prompt_ids))
            return self.chains[-1]
        longest = max(extended, key=lambda chain: len(chain.ids))
        longest.append_context(prompt_ids[len(longest.ids) :])
        return longest

    @property
    def versions(self) -> set[int]:
        """Policy versions of all sampled tokens."""
        return {version for chain in self.chains for version in chain.versions}

    def to_segments(self) -> list[Segment]:
        return [chain.to_segment() for chain in self.chains]
