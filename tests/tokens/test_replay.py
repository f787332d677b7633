"""A harness that runs again gets the replies that an earlier process had for it."""

import random
from array import array

from hypothesis import given
from hypothesis import strategies as st

from prorl_service.schemas import Turn
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tokens.ledger import Ledger, Span
from prorl_service.tokens.replay import TurnReplay, of_rollout
from tests import builders
from tests.gateway.rollouts import Rollout, rollout, tool_call
from tests.gateway.test_gateway import Json, asked, post, results, user

REPLIES = [tool_call(n=1), "A title.", tool_call(n=2), "Done."]


def again(run: Rollout, earlier: Rollout, count: int) -> list[int]:
    """Gives `run` the first turns of another. Returns the list in which the end is noted."""
    ended = list[int]()
    before = earlier.attempt
    run.attempt.replay = TurnReplay(of_rollout(before.ledger, before.turns[:count]), ended.append)
    return ended


async def worked(run: Rollout, printed: str, *, title: str = "Title?") -> None:
    """Works as a harness does that has its policy find a title, too."""
    history: list[Json] = [user("Begin.")]
    for number in range(3):
        message = await post(run, asked(*history))
        if number == 0:
            await post(run, asked(user(title)))
        history.append(message)
        if message.get("tool_calls"):
            history += results(message, printed)


def chains(run: Rollout) -> list[list[int]]:
    return [chain.ids.tolist() for chain in run.attempt.ledger.chains]


async def test_turns_come_back_with_the_results_of_then(chat: ChatFormat) -> None:
    async with rollout(chat, REPLIES) as first, rollout(chat, []) as second:
        await worked(first, "at 10:00")
        ended = again(second, first, count=4)
        await worked(second, "at 11:00")
        assert second.engine.prompts == []
        assert second.attempt.ledger.to_segments() == first.attempt.ledger.to_segments()
        assert second.attempt.turns == first.attempt.turns
    assert ended == [4]


async def test_sampling_goes_on_where_the_earlier_process_ended(chat: ChatFormat) -> None:
    async with rollout(chat, REPLIES) as first, rollout(chat, REPLIES[2:]) as second:
        await worked(first, "at 10:00")
        ended = again(second, first, count=2)
        await worked(second, "at 10:00")
        assert second.engine.prompts == first.engine.prompts[2:]
        assert chains(second) == chains(first)
    assert ended == [2]


async def test_a_new_request_ends_the_replay(chat: ChatFormat) -> None:
    async with rollout(chat, REPLIES) as first, rollout(chat, REPLIES[1:]) as second:
        await worked(first, "at 10:00")
        ended = again(second, first, count=4)
        await worked(second, "at 11:00", title="Another title?")
        assert len(second.engine.prompts) == 3
        mask = second.attempt.ledger.to_segments()[0].loss_mask
        assert sum(mask) == sum(first.attempt.ledger.to_segments()[0].loss_mask)
    assert ended == [1]


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.randoms())
def test_every_turn_is_given_once(continues: list[bool], rng: random.Random) -> None:
    """Conversations may come in another order than before."""
    ledger, turns = Ledger(), list[Turn]()
    for number, one in enumerate(continues):
        prompt = ledger.ids + array("i", [100 + number]) if one else array("i", [number])
        span = ledger.record(prompt, [1000 + number], [-0.5], [3])
        turns.append(builders.turn(span.segment, span.start, span.stop))
    replay = TurnReplay(of_rollout(ledger, turns), lambda _: None)
    now = Ledger()
    ready, numbers = [i for i in range(len(turns)) if turns[i].start == 0], dict[int, int]()
    while ready:
        chosen = ready.pop(rng.randrange(len(ready)))
        parent = next((i for i in range(chosen)[::-1] if _same(turns, i, chosen)), None)
        prompt = ledger.before(turns[chosen].segment, turns[chosen].start)
        if parent is not None:
            assert replay.prompt(numbers[parent], []) == prompt
        taken = replay.take(prompt, now)
        assert taken is not None
        assert now.sampled(Span(taken.segment, taken.start, taken.stop))[0].tolist() == [
            1000 + chosen
        ]
        numbers[chosen] = len(numbers)
        ready += [i for i in range(chosen + 1, len(turns)) if _same(turns, i, chosen)][:1]
    assert replay.is_over
    assert len(numbers) == len(turns)


def _same(turns: list[Turn], one: int, other: int) -> bool:
    return turns[one].segment == turns[other].segment
