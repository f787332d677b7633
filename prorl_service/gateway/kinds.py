"""What each segment of a harness' rollout is, which reply is the answer, and which replies were
thrown away. Pure.

The agent's own conversation, the main one, begins with the first request that has tools, or with
the very first if none has any. A request that contains replies of a conversation continues it, even
with other tools or another system prompt: programs hand over to another agent, put the time into
the prompt, and add tools. Requests without such replies come from sub-agents, ask for titles and
the like, or continue from a summary.
"""

import json
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass

from prorl_service.schemas import SegmentKind


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A model call, by the number of its turn: its place in the list."""

    segment: int
    parent: int | None
    """Number of the turn that it continues."""
    tools: bytes
    """Digest of the tools; empty without any."""
    system: bytes
    """Digest of the system prompt."""
    quoted: tuple[int, ...] = ()
    """Numbers of the turns whose replies its request held, in its order."""
    asked_again: tuple[int, ...] = ()
    """Numbers of the turns whose very requests it repeats, without their replies."""
    has_calls: bool = False
    """Whether its reply called tools."""
    text: str = ""
    """Text of its reply, without reasoning."""
    is_subagent: bool = False
    """Whether its client says that it is a sub-agent."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """Kinds of the segments of a rollout, and the turns of its main conversation."""

    of_segments: dict[int, SegmentKind]
    own: tuple[int, ...]
    """Numbers of the turns of the main conversation, without summaries."""


@dataclass(frozen=True, slots=True)
class GradedReply:
    turn: int | None
    is_sure: bool
    """Whether what the program printed does not speak against it."""


def kinds_of(calls: Sequence[AnsweredCall]) -> Kinds:
    main = _main(calls)
    own = list[int]()
    for number in range(len(calls)):
        if main is not None and _is_own(number, calls, main, own):
            own.append(number)
    first: dict[int, int] = {}
    for number, call in enumerate(calls):
        first.setdefault(call.segment, number)
    restarts = {number for number in first.values() if _is_restart(number, calls, own)}
    quoted = {turn for call in calls for turn in call.quoted}
    found: dict[int, SegmentKind] = {}
    for segment, number in first.items():
        if number not in own:
            found[segment] = _kind_of_other(calls[number], main)
        elif number in restarts or _is_summary(segment, calls, own, restarts, quoted):
            found[segment] = "compaction"
        else:
            found[segment] = "main"
    spoken = [
        number
        for number in own
        if found[calls[number].segment] == "main" or first[calls[number].segment] in restarts
    ]
    return Kinds(found, tuple(spoken))


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


def answer(calls: Sequence[AnsweredCall], own: Sequence[int], printed: str) -> GradedReply:
    """Returns the turn with the agent's answer: the last reply of the main conversation. If the
    program printed an earlier reply without calls, and not the last one, the printed one is the
    answer: programs ask for more once they have it, such as what to do next."""
    if not own:
        return GradedReply(None, is_sure=True)
    *earlier, last = own
    if not calls[last].text.strip() or _is_in(calls[last].text, printed):
        return GradedReply(last, is_sure=True)
    for number in reversed(earlier):
        if not calls[number].has_calls and _is_in(calls[number].text, printed):
            return GradedReply(number, is_sure=False)
    return GradedReply(last, is_sure=True)


def _is_in(text: str, printed: str) -> bool:
    """Returns whether a program printed a reply, as text whose lines it may have wrapped, or in
    JSON."""
    if not text.strip():
        return False
    said = " ".join(text.split())
    if re.search(rf"(?<!\w){re.escape(said)}(?!\w)", " ".join(printed.split())):
        return True
    stripped = text.strip()
    forms = (json.dumps(stripped, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))
    return any(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", printed) for one in forms)


def _main(calls: Sequence[AnsweredCall]) -> AnsweredCall | None:
    own = [call for call in calls if not call.is_subagent] or calls
    return next((call for call in own if call.tools), own[0] if own else None)


def _is_own(
    number: int, calls: Sequence[AnsweredCall], main: AnsweredCall, own: Sequence[int]
) -> bool:
    """Returns whether a call is part of the main conversation."""
    call = calls[number]
    if call is main:
        return True
    if call.is_subagent or not own:
        return False
    if not call.quoted:
        return (call.tools, call.system) == (main.tools, main.system)
    last = call.quoted[-1]
    return last in own and (call.parent is not None or _goes_on(call, calls[last]))


def _goes_on(call: AnsweredCall, last: AnsweredCall) -> bool:
    """Returns whether a rewritten request continues a conversation whose newest reply is `last`.
    After a reply without calls, it must offer the same tools, or some under the same system
    prompt: other agents of a program also read finished work."""
    if last.has_calls or call.tools == last.tools:
        return True
    return bool(call.tools) and call.system == last.system


def _is_restart(number: int, calls: Sequence[AnsweredCall], own: Sequence[int]) -> bool:
    """Returns whether a call restarts the main conversation without its first turns."""
    if number not in own or calls[number].parent is not None:
        return False
    kept = {turn for one in own if one < number for turn in calls[one].quoted}
    return bool(kept) and min(calls[number].quoted, default=number) > min(kept)


def _is_summary(
    segment: int,
    calls: Sequence[AnsweredCall],
    own: Sequence[int],
    restarts: Set[int],
    quoted: Set[int],
) -> bool:
    """Returns whether a segment of the main conversation asks for a summary: no later request
    contains its replies, and the conversation restarts after it, or has tools again."""
    turns = [number for number, call in enumerate(calls) if call.segment == segment]
    after = [number for number in own if number > turns[-1] and calls[number].segment != segment]
    if not after or not calls[turns[0]].quoted or not quoted.isdisjoint(turns):
        return False
    restarted = next((one in restarts for one in after if calls[one].parent is None), False)
    return restarted or (not calls[turns[0]].tools and bool(calls[after[0]].tools))


def _kind_of_other(call: AnsweredCall, main: AnsweredCall | None) -> SegmentKind:
    if call.is_subagent or call.tools or (main is not None and not main.tools):
        return "subagent"
    return "compaction" if call.quoted else "auxiliary"
