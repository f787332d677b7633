"""Which trace a rollout belongs to, by which ids, and whether it is traced at all.

Everything follows from what the rollout is, so that nothing has to be kept over a restart, siblings
can be named before they have ended, and they are traced together or not at all. Pure.
"""

from dataclasses import dataclass
from hashlib import blake2b

from prorl_service.schemas import Group

MAX_LINKS = 32
"""Siblings that a rollout is linked to."""
_SAMPLED = 1
"""Bit of the flags of a `traceparent`: its span is recorded."""


@dataclass(frozen=True, slots=True)
class SpanIds:
    """Ids of one span: its trace, and itself."""

    trace: int
    span: int


def is_traced(group: Group, share: float) -> bool:
    """By a hash of the group's id. A group whose parent is not recorded is not, either."""
    parent = group.traceparent
    if parent is not None and not int(parent[-2:], 16) & _SAMPLED:
        return False
    return _hash(group.group_id, bits=64) < share * 2**64


def parent_of(group: Group) -> SpanIds | None:
    """None: each of its rollouts is a trace of its own."""
    if group.traceparent is None:
        return None
    _, trace, parent, _ = group.traceparent.split("-")
    return SpanIds(int(trace, 16), int(parent, 16))


def root_of(group: Group, index: int, created_at: float) -> SpanIds:
    """Ids of a rollout's own span. `created_at`: when the group was accepted; ids of groups come
    again in other runs."""
    key = f"{group.rollout_id(index)} {created_at!r}"
    parent = parent_of(group)
    trace = _hash(f"trace {key}", bits=128) if parent is None else parent.trace
    return SpanIds(trace, _hash(f"span {key}", bits=64))


def below(root: SpanIds, number: int) -> SpanIds:
    """Ids of one of the spans of that rollout, the root's being number 0."""
    if number == 0:
        return root
    return SpanIds(root.trace, _hash(f"{root.trace:x} {root.span:x} {number}", bits=64))


def siblings_of(group: Group, index: int, created_at: float) -> list[SpanIds]:
    """The first of the others, by index."""
    others = [one for one in range(min(group.n, MAX_LINKS + 1)) if one != index]
    return [root_of(group, one, created_at) for one in others[:MAX_LINKS]]


def _hash(text: str, *, bits: int) -> int:
    """Never 0, which stands for no id."""
    return int.from_bytes(blake2b(text.encode(), digest_size=bits // 8).digest()) or 1
