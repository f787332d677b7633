"""The ids of a rollout's trace and spans, and whether it is traced at all. Pure.

All ids follow from the rollout itself, so that no state is kept over a restart, siblings can be
linked before they have ended, and a group is traced as a whole or not at all.
"""

from dataclasses import dataclass
from hashlib import blake2b

from prorl_service.schemas import Group

MAX_LINKS = 32
"""Most siblings that a rollout links to."""
_SAMPLED = 1
"""Bit of the flags of a `traceparent`: its span is recorded."""


@dataclass(frozen=True, slots=True)
class SpanIds:
    """Ids of a span and its trace."""

    trace: int
    span: int


def is_traced(group: Group, share: float) -> bool:
    """Samples by a hash of the group's id, and only groups whose parent, if any, is recorded."""
    parent = group.traceparent
    if parent is not None and not int(parent[-2:], 16) & _SAMPLED:
        return False
    return _hash(group.group_id, bits=64) < share * 2**64


def parent_of(group: Group) -> SpanIds | None:
    """Returns None if each rollout of the group is a trace of its own."""
    if group.traceparent is None:
        return None
    _, trace, parent, _ = group.traceparent.split("-")
    return SpanIds(int(trace, 16), int(parent, 16))


def root_of(group: Group, index: int, created_at: float) -> SpanIds:
    """Returns the ids of a rollout's own span. `created_at`, when the group was accepted, separates
    groups that have the same id in other runs."""
    key = f"{group.rollout_id(index)} {created_at!r}"
    parent = parent_of(group)
    trace = _hash(f"trace {key}", bits=128) if parent is None else parent.trace
    return SpanIds(trace, _hash(f"span {key}", bits=64))


def below(root: SpanIds, number: int) -> SpanIds:
    """Returns the ids of one of the rollout's spans; number 0 is the root."""
    if number == 0:
        return root
    return SpanIds(root.trace, _hash(f"{root.trace:x} {root.span:x} {number}", bits=64))


def siblings_of(group: Group, index: int, created_at: float) -> list[SpanIds]:
    """Returns the first `MAX_LINKS` siblings, by index."""
    others = [one for one in range(min(group.n, MAX_LINKS + 1)) if one != index]
    return [root_of(group, one, created_at) for one in others[:MAX_LINKS]]


def _hash(text: str, *, bits: int) -> int:
    """Returns a hash that is never 0, which means "no id"."""
    return int.from_bytes(blake2b(text.encode(), digest_size=bits // 8).digest()) or 1
