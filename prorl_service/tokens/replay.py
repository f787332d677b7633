"""Turns that were sampled before, for an agent that starts again from its beginning.

The agent repeats its requests, and gets the earlier replies instead of new ones: nothing is sampled
twice. A request that continues an earlier turn gets the prompt that did so then, with the results
that the policy saw, even if a command printed something else this time. The first request without
an earlier reply ends the replay. Samples nothing itself.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prorl_service.schemas import Turn
from prorl_service.tokens.ledger import Ledger, Span


@dataclass(frozen=True, slots=True)
class EarlierTurn:
    turn: Turn
    prompt: "array[int] | None"
    """Its prompt, int32; None if any prompt will do."""
    sampled: "tuple[array[int], array[float], array[int]]"
    """Ids, logprobs and policy versions of its tokens."""


def of_rollout(ledger: Ledger, turns: Sequence[Turn]) -> list[EarlierTurn]:
    return [
        EarlierTurn(
            turn,
            ledger.before(turn.segment, turn.start),
            ledger.sampled(Span(turn.segment, turn.start, turn.stop)),
        )
        for turn in turns
    ]


class TurnReplay:
    def __init__(
        self,
        turns: Sequence[EarlierTurn],
        on_end: Callable[[int], object],
        *,
        count: int | None = None,
    ) -> None:
        """`count`: number of turns that are given again, by default all; of the others, prompts are
        known. `on_end` gets the number of turns that were given at the end."""
        self._turns = turns
        self._parents = _parents([one.turn for one in turns])
        self._unused = [*range(len(turns) if count is None else count)]
        self._numbers: dict[int, int] = {}
        """Earlier numbers of turns by those that they have now."""
        self._on_end = on_end
        self.is_over = False

    @property
    def has_results(self) -> bool:
        """True if the turns have the results of their calls."""
        return all(one.prompt is not None for one in self._turns)

    def prompt(self, parent: int, prompt: Sequence[int]) -> Sequence[int]:
        """Returns the prompt that continued turn `parent` then. `prompt`: the one of now, which is
        returned if none is known."""
        earlier = self._numbers.get(parent)
        if earlier is None or earlier not in self._parents:
            return prompt
        then = self._turns[self._parents.index(earlier)].prompt
        return prompt if then is None else then

    def take(self, prompt: Sequence[int], ledger: Ledger) -> Turn | None:
        """Enters the earlier reply to this prompt into the new `ledger`, and returns its turn."""
        if self.is_over:
            return None
        ids = array("i", prompt)
        found = next((one for one in self._unused if self._turns[one].prompt in (None, ids)), None)
        if found is None:
            self.end()
            return None
        self._unused.remove(found)
        self._numbers[len(self._numbers)] = found
        if not self._unused:
            self.end()
        earlier = self._turns[found]
        span = ledger.record(ids, *earlier.sampled)
        place = {"segment": span.segment, "start": span.start, "stop": span.stop}
        taken: Turn = earlier.turn.model_copy(update=place)
        return taken

    def end(self) -> None:
        """Ends it, unless it is over: when a request had no earlier reply, when there are no more
        replies, and when the agent has ended."""
        if not self.is_over:
            self.is_over = True
            self._on_end(len(self._numbers))


def _parents(turns: Sequence[Turn]) -> list[int | None]:
    """Returns the number of the turn that each continues: the one before it in its segment."""
    newest: dict[int, int] = {}
    parents = []
    for number, turn in enumerate(turns):
        parents.append(newest.get(turn.segment))
        newest[turn.segment] = number
    return parents
