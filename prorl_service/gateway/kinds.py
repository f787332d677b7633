"""What each segment of a harness' rollout is, and which replies were thrown away. Pure.

The agent's own conversation is that of the first request with tools, or of the first of all where
none has any. Requests with other tools or another system prompt are those of sub-agents; requests
without tools make titles and the like, unless they hold replies of the policy: then they ask for a
summary, and what begins anew with the agent's own head goes on from one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prorl_service.schemas import SegmentKind


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A model call, by the number of its turn: its place in the list."""

    segment: int
    parent: int | None
    """Number of the turn that it continues."""
    head: bytes
    """Digest of tools and system prompt."""
    has_tools: bool
    quotes_policy: bool
    """Whether its request held replies of the policy."""
    asked_again: tuple[int, ...] = ()
    """Numbers of the turns whose very requests it repeats, without their replies."""
    is_subagent: bool = False
    """Whether its client says that it is a sub-agent."""


def kinds_of(calls: Sequence[AnsweredCall]) -> dict[int, SegmentKind]:
    """Returns the kind of each segment."""
    main = _main(calls)
    first: dict[int, tuple[int, AnsweredCall]] = {}
    for number, call in enumerate(calls):
        first.setdefault(call.segment, (number, call))
    found: dict[int, SegmentKind] = {}
    for segment, (number, call) in first.items():
        found[segment] = _kind(number, call, calls, main)
    return found


def abandoned(calls: Sequence[AnsweredCall]) -> list[int]:
    """Returns the numbers of replies that no later request holds, while another reply was asked for
    in their place."""
    continued = {call.parent for call in calls}
    newest = {call.parent: number for number, call in enumerate(calls)}
    replaced = {number for call in calls if not call.is_subagent for number in call.asked_again}
    replaced |= {
        number
        for number, call in enumerate(calls)
        if call.parent is not None and newest[call.parent] != number
    }
    return sorted(replaced - continued)


def last_of_main(calls: Sequence[AnsweredCall], kinds: Mapping[int, SegmentKind]) -> int | None:
    """Returns the number of the last turn of the agent's own conversation."""
    own = [number for number, call in enumerate(calls) if _is_own(kinds[call.segment], call)]
    return own[-1] if own else None


def _is_own(kind: SegmentKind, call: AnsweredCall) -> bool:
    return kind == "main" or (kind == "compaction" and call.has_tools)


def _main(calls: Sequence[AnsweredCall]) -> AnsweredCall | None:
    own = [call for call in calls if not call.is_subagent] or calls
    return next((call for call in own if call.has_tools), own[0] if own else None)


def _kind(
    number: int, call: AnsweredCall, calls: Sequence[AnsweredCall], main: AnsweredCall | None
) -> SegmentKind:
    assert main is not None
    if call.is_subagent:
        return "subagent"
    if call.head == main.head:
        goes_on = any(one.head == main.head and one.parent is not None for one in calls[:number])
        return "compaction" if goes_on and not call.quotes_policy else "main"
    if call.has_tools or not main.has_tools:
        return "subagent"
    return "compaction" if call.quotes_policy else "auxiliary"
