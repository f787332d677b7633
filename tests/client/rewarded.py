"""Rollouts whose turns have rewards, for hypothesis: several segments, turns asked for again, and
parts that are not trained on."""

from itertools import count

from hypothesis import strategies as st

from prorl_service.schemas import Rollout, Turn
from prorl_service.tokens.ledger import Ledger
from tests import builders


@st.composite
def rewarded_rollouts(draw: st.DrawFn) -> Rollout:
    """Each id occurs once, so that places can be told from ids."""
    ledger, ids, turns = Ledger(), count(), list[Turn]()
    for _ in range(draw(st.integers(1, 8))):
        prompt, again = _prompt(draw, ledger, turns, ids)
        sampled = _some(draw, ids, 1)
        span = ledger.record(prompt, sampled, [-0.5] * len(sampled), [3] * len(sampled))
        reward = draw(st.sampled_from([None, 0.0, 0.25, -1.0, 3.0]))
        turns.append(builders.turn(span.segment, span.start, span.stop, reward=reward))
        if again is not None:
            again.is_abandoned = True
    rollout = builders.rollout(
        "g.0", *ledger.to_segments(), reward=draw(st.sampled_from([0.0, 1.0, -2.5]))
    )
    assert rollout.trajectory is not None
    rollout.trajectory.turns = turns
    for segment in rollout.trajectory.segments[1:]:
        segment.is_trained = draw(st.booleans())
        segment.kind = draw(st.sampled_from(["main", "subagent"]))
    return rollout


def _prompt(
    draw: st.DrawFn, ledger: Ledger, turns: list[Turn], ids: "count[int]"
) -> tuple[list[int], Turn | None]:
    """Returns a prompt that begins a segment, continues one, or repeats that of a turn; and that
    turn."""
    step = draw(st.sampled_from(["begin", "continue", "again"])) if turns else "begin"
    if step == "begin":
        return _some(draw, ids, 1), None
    if step == "continue":
        chain = draw(st.sampled_from(ledger.chains))
        return [*chain.ids, *_some(draw, ids, 0)], None
    turn = draw(st.sampled_from(turns))
    return [*ledger.before(turn.segment, turn.start)], turn


def _some(draw: st.DrawFn, ids: "count[int]", least: int) -> list[int]:
    return [next(ids) for _ in range(draw(st.integers(least, 4)))]
