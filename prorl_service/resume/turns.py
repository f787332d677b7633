"""A rollout's whole turns as bytes, and what it does next.

Recording the turns in order gives the very ledger that the process had. What an agent's own loop
samples next is saved besides: it may begin another conversation, of which the ledger knows nothing.
"""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from pydantic import BaseModel, JsonValue

from prorl_service.schemas import Resumption, SegmentKind, Turn
from prorl_service.schemas.arrays import PACKED, Int32Array
from prorl_service.tokens.ledger import Ledger, Span

_LENGTHS = struct.Struct("<3I")
"""Bytes of the added ids, the sampled ids, and of the turn as JSON."""


@dataclass(frozen=True, slots=True)
class SavedTurn:
    added_ids: "array[int]"
    """Ids of the prompt that its segment did not have before, int32."""
    token_ids: "array[int]"
    """Sampled ids, int32. Logprobs and versions have their length."""
    logprobs: "array[float]"
    versions: "array[int]"
    turn: Turn

    def to_bytes(self) -> bytes:
        arrays = (self.added_ids, self.token_ids, self.logprobs, self.versions)
        added, sampled, *others = (one.tobytes() for one in arrays)
        rest = self.turn.model_dump_json(exclude_defaults=True).encode()
        lengths = _LENGTHS.pack(len(added), len(sampled), len(rest))
        return b"".join((lengths, added, sampled, *others, rest))

    @classmethod
    def from_bytes(cls, content: bytes) -> "SavedTurn":
        """Raises `ValueError` for what is no turn."""
        try:
            added, sampled, rest = _LENGTHS.unpack_from(content)
        except struct.error as error:
            raise ValueError(f"no kept turn: {error}") from None
        ends = [*accumulate([_LENGTHS.size, added, sampled, sampled, sampled, rest])]
        if ends[-1] != len(content):
            raise ValueError("no kept turn: its length is wrong")
        added_ids, token_ids, logprobs, versions, turn = (
            content[start:end] for start, end in pairwise(ends)
        )
        return cls(
            array("i", added_ids),
            array("i", token_ids),
            array("f", logprobs),
            array("i", versions),
            Turn.model_validate_json(turn),
        )


class SavedIds(BaseModel):
    """Ids as what a segment begins with, and the rest: a prompt is seldom new."""

    segment: int = 0
    length: int = 0
    """Number of the segment's first ids, prompt included."""
    rest: Int32Array

    @classmethod
    def of(cls, ids: Sequence[int], ledger: Ledger) -> "SavedIds":
        ids, segment, most = array("i", ids), 0, 0
        for number, chain in enumerate(ledger.chains):
            length = min(len(ids), len(chain.ids))
            if length > most and chain.ids[:length] == ids[:length]:
                segment, most = number, length
        return cls(segment=segment, length=most, rest=ids[most:].tolist())

    def within(self, ledger: Ledger) -> "array[int]":
        """Returns the ids, int32."""
        begun = ledger.chains[self.segment].ids[: self.length] if self.length else array("i")
        return begun + array("i", self.rest)


class Continuation(BaseModel):
    """What a rollout does after its whole turns."""

    model: str
    """Identity of the model that sampled them."""
    next_prompt: SavedIds | None
    """Prompt that is sampled next; None for a program, which asks for it itself."""
    prompt: SavedIds
    """First prompt of the conversation, from which limits are counted."""
    first_turn: int = 0
    """Number of that conversation's first turn."""
    begun_calls: int
    """Number of model calls until then, for the seed of the next."""
    worked_s: float
    """Seconds of RUN's budget that are used up."""
    kept_at: float
    """Unix time in seconds."""
    agent: JsonValue = None
    """The agent's own state."""
    resumed: list[Resumption] = []
    kinds: dict[int, tuple[SegmentKind, bool]] = {}
    final_turn: int | None = None

    def to_bytes(self) -> bytes:
        return self.model_dump_json(exclude_defaults=True, context=PACKED).encode()


def rebuilt(turns: Sequence[SavedTurn]) -> Ledger:
    """Returns the ledger that has these turns. Raises `ValueError` if they do not follow one
    another."""
    ledger = Ledger()
    for saved in turns:
        turn, chains = saved.turn, ledger.chains
        begun = chains[turn.segment].ids if turn.segment < len(chains) else array("i")
        prompt = begun + saved.added_ids
        span = ledger.record(prompt, saved.token_ids, saved.logprobs, saved.versions)
        if span != Span(turn.segment, turn.start, turn.stop):
            raise ValueError(f"a turn is missing: {span} is not where its tokens were")
    return ledger
