"""A rollout's whole turns as bytes, from which a later process continues.

A turn is whole once the policy's next prompt is known. Replaying the turns in order gives the very
ledger that the process had. Writes nothing: `pipeline.keeping` decides when, `rollouts.journal` has
the bytes.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, JsonValue

from prorl_service.schemas import Resumption, Turn
from prorl_service.tokens.ledger import Ledger, Span

_LENGTHS = struct.Struct("<4I")
"""Bytes of the prompt's ids, the sampled ids, the following ids, and of the rest as JSON."""


class TurnState(BaseModel):
    """Data of a whole turn besides tokens."""

    turn: Turn
    begun_calls: int
    """Number of model calls until then, for the seed of the next."""
    worked_s: float
    """Seconds of RUN's budget that are used up."""
    kept_at: float
    """Unix time in seconds."""
    agent: JsonValue = None
    """The agent's own state."""
    resumed: list[Resumption] = []


@dataclass(frozen=True, slots=True)
class KeptTurn:
    prompt_ids: "array[int]"
    """Prompt, int32, if it does not continue the turn before; otherwise empty."""
    token_ids: "array[int]"
    """Sampled ids, int32. Logprobs and versions have their length."""
    logprobs: "array[float]"
    versions: "array[int]"
    following_ids: "array[int]"
    """Ids that answer the turn, int32: with the chain they are the next prompt."""
    state: TurnState

    def to_bytes(self) -> bytes:
        parts = [self.prompt_ids.tobytes(), self.token_ids.tobytes(), self.following_ids.tobytes()]
        rest = self.state.model_dump_json(exclude_defaults=True).encode()
        lengths = _LENGTHS.pack(*map(len, [*parts, rest]))
        return b"".join((lengths, *parts, self.logprobs.tobytes(), self.versions.tobytes(), rest))

    @classmethod
    def from_bytes(cls, content: bytes) -> "KeptTurn":
        """Raises `ValueError` for what is no turn."""
        try:
            prompt, sampled, following, rest = _LENGTHS.unpack_from(content)
        except struct.error as error:
            raise ValueError(f"no kept turn: {error}") from None
        ends = iter(_ends(_LENGTHS.size, [prompt, sampled, following, sampled, sampled, rest]))
        start = _LENGTHS.size
        parts = []
        for end in ends:
            parts.append(content[start:end])
            start = end
        if start != len(content):
            raise ValueError("no kept turn: its length is wrong")
        prompt_ids, token_ids, following_ids, logprobs, versions, state = parts
        return cls(
            array("i", prompt_ids),
            array("i", token_ids),
            array("f", logprobs),
            array("i", versions),
            array("i", following_ids),
            TurnState.model_validate_json(state),
        )


def _ends(start: int, lengths: Sequence[int]) -> Iterator[int]:
    for length in lengths:
        start += length
        yield start


def rebuilt(turns: Sequence[KeptTurn], ledger: Ledger) -> "array[int]":
    """Enters the turns in an empty ledger. Returns the next prompt, int32.

    Raises `ValueError` if they do not follow one another.
    """
    prompt_ids = array("i")
    for kept in turns:
        prompt_ids = kept.prompt_ids or prompt_ids
        if not prompt_ids:
            raise ValueError("the first turn is not kept")
        span = ledger.record(prompt_ids, kept.token_ids, kept.logprobs, kept.versions)
        turn = kept.state.turn
        if span != Span(turn.segment, turn.start, turn.stop):
            raise ValueError(f"a turn is missing: {span} is not where its tokens were")
        prompt_ids = ledger.ids + kept.following_ids
    return prompt_ids
