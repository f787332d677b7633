"""A trajectory laid out for people: a rollout as text, and its tokens in columns. Pure.

Nothing is cut, and only bytes that form no character are escaped: it is what models, tools and
agents wrote, and can be hostile.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from prorl_service.agents.base import Prompt
from prorl_service.errors import InvalidRequest
from prorl_service.schemas import (
    NOT_SAMPLED,
    Group,
    Rollout,
    Segment,
    Trajectory,
    Turn,
)
from prorl_service.schemas.views import (
    RolloutRow,
    RolloutText,
    SegmentSize,
    Sibling,
    TextCall,
    TextTurn,
    TokenSlice,
)
from prorl_service.shelf.rows import blame_of
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.formats import Reply
from prorl_service.tokens.pieces import shown

TAIL = 64
"""Tokens before a reply that are read to see whether it begins within reasoning."""
NO_MODEL = "the model of these tokens is not known here: replies are shown as they were sampled"


def text_of(
    rollout: Rollout,
    group: Group,
    row: RolloutRow,
    siblings: Sequence[RolloutRow],
    prompt: Prompt,
    chat: ChatFormat | None,
    notice: str = "",
) -> RolloutText:
    """`chat` is the model's format; None if the model is not known here."""
    trajectory = rollout.trajectory
    turns = [] if trajectory is None else list(_turns(trajectory, prompt, chat))
    no_model = NO_MODEL if turns and chat is None else ""
    origin = _origin(trajectory)
    return RolloutText(
        rollout=row,
        group_size=group.n,
        prompt=list(prompt.messages),
        tools=list(prompt.tools),
        task=group.task,
        sampling=group.sampling,
        limits=group.limits,
        turns=turns,
        segments=[] if trajectory is None else [_size(one) for one in trajectory.segments],
        resumed=rollout.resumed,
        replay=rollout.replay,
        report=rollout.report,
        siblings=siblings_of(group, siblings),
        notice="; ".join(filter(None, (notice, no_model, origin))),
    )


def _origin(trajectory: Trajectory | None) -> str:
    """Returns a notice on tokens that nobody has sampled; "" for others."""
    if trajectory is None or trajectory.policy is None:
        return ""
    return f"text of {trajectory.policy} behind an API: these tokens are not its own"


def siblings_of(group: Group, rows: Sequence[RolloutRow]) -> list[Sibling]:
    known = {row.index: row for row in rows}
    return [_sibling(group, index, known.get(index)) for index in range(group.n)]


def _sibling(group: Group, index: int, row: RolloutRow | None) -> Sibling:
    rollout_id = group.rollout_id(index)
    if row is None:
        return Sibling(rollout_id=rollout_id, index=index, state=None)
    return Sibling(
        rollout_id=rollout_id,
        index=index,
        state=row.state,
        reward=row.reward,
        blame=blame_of(row),
    )


def _size(segment: Segment) -> SegmentSize:
    return SegmentSize(
        prompt_tokens=len(segment.prompt_ids),
        response_tokens=len(segment.response_ids),
        sampled_tokens=sum(segment.loss_mask),
    )


# --- turns --------------------------------------------------------------------------------------


def _turns(trajectory: Trajectory, prompt: Prompt, chat: ChatFormat | None) -> Iterator[TextTurn]:
    for before, turn in pairwise([None, *trajectory.turns]):
        assert turn is not None
        segment = trajectory.segments[turn.segment]
        reply = _reply(turn, segment, prompt, chat)
        versions = set(segment.policy_versions[turn.start : turn.stop]) - {NOT_SAMPLED}
        yield TextTurn(
            segment=turn.segment,
            start=turn.start,
            stop=turn.stop,
            given=_given(before, turn, segment, chat),
            raw=turn.text,
            reasoning=reply.reasoning,
            text=reply.content,
            tool_calls=_calls(turn, reply),
            format_error=turn.format_error,
            stop_reason=turn.finish_reason,
            reward=turn.reward,
            prompt_tokens=len(segment.prompt_ids) + turn.start,
            sampled_tokens=turn.stop - turn.start,
            cached_tokens=turn.cached_tokens,
            oldest_policy_version=min(versions, default=None),
            newest_policy_version=max(versions, default=None),
            model_s=turn.model_s,
            times=turn.times,
            tool_s=sum(call.duration_s for call in turn.tool_calls),
            backend=turn.backend,
            is_replayed=turn.is_replayed,
            results_differ=turn.results_differ,
        )


def _reply(turn: Turn, segment: Segment, prompt: Prompt, chat: ChatFormat | None) -> Reply:
    """Returns the reply as the agent read it, if it offered the tools of its first prompt."""
    if chat is None:
        return Reply(turn.text)
    response = segment.response_ids[max(0, turn.start - TAIL) : turn.start]
    before = [*segment.prompt_ids[-TAIL:], *response]
    return chat.read(turn.text, before, prompt.tools)


def _calls(turn: Turn, reply: Reply) -> list[TextCall]:
    """Returns the calls that were made, then those written but not made."""
    made = [TextCall(**dict(call)) for call in turn.tool_calls]
    written = [TextCall(name=call.name, arguments=call.arguments) for call in reply.calls]
    return [*made, *written[len(made) :]]


def _given(
    before: Turn | None, turn: Turn, segment: Segment, chat: ChatFormat | None
) -> str | None:
    """Returns what else the model saw: a new segment's prompt, or text of an agent's own loop."""
    if chat is None:
        return None
    if before is None or before.segment != turn.segment:
        is_first = before is None and turn.segment == 0 and turn.start == 0
        ids = [*segment.prompt_ids, *segment.response_ids[: turn.start]]
        return None if is_first else chat.decode(ids)
    if before.tool_calls or before.format_error:
        return None
    return chat.decode(segment.response_ids[before.stop : turn.start]) or None


# --- tokens -------------------------------------------------------------------------------------


def tokens_of(
    rollout_id: str,
    trajectory: Trajectory | None,
    chat: ChatFormat | None,
    *,
    segment: int,
    start: int,
    count: int,
) -> TokenSlice:
    """Raises `InvalidRequest` for a segment that is not there."""
    segments = trajectory.segments if trajectory is not None else []
    if segment >= len(segments):
        raise InvalidRequest.of_field(
            "segment", f"{rollout_id} has {len(segments)} segments", hint="they count from 0"
        )
    chain = segments[segment]
    prompt_tokens = len(chain.prompt_ids)
    length = prompt_tokens + len(chain.response_ids)
    ids = [*chain.prompt_ids, *chain.response_ids][start : start + count]
    mask = [*[0] * prompt_tokens, *chain.loss_mask][start : start + count]
    logprobs = [*[0.0] * prompt_tokens, *chain.logprobs][start : start + count]
    versions = [*[NOT_SAMPLED] * prompt_tokens, *chain.policy_versions][start : start + count]
    texts = [shown(chat.pieces(one)) if chat is not None else ("", False) for one in ids]
    return TokenSlice(
        rollout_id=rollout_id,
        segment=segment,
        segments=len(segments),
        start=start,
        length=length,
        prompt_tokens=prompt_tokens,
        ids=ids,
        texts=[text for text, _ in texts],
        partial=[place for place, (_, is_partial) in enumerate(texts) if is_partial],
        logprobs=[
            logprob if is_sampled else None
            for logprob, is_sampled in zip(logprobs, mask, strict=True)
        ],
        mask=mask,
        versions=[None if one == NOT_SAMPLED else one for one in versions],
        notice=_origin(trajectory) if chat is not None else NO_MODEL,
    )
