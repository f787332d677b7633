"""Turns of an earlier process, for an agent whose program starts again from its beginning.

The program repeats its requests, and gets the earlier replies instead of new ones: nothing is
sampled twice. A request that continues an earlier turn gets the earlier prompt, too, with the
results that the policy saw then, even if a command printed something else this time. The first
request without an earlier reply ends the replay. Samples nothing itself.
"""

from array import array
from collections.abc import Callable, Sequence

from prorl_service.schemas import Turn
from prorl_service.tokens.ledger import Ledger, Span


class TurnReplay:
    def __init__(
        self, ledger: Ledger, turns: Sequence[Turn], on_end: Callable[[int], object]
    ) -> None:
        """`ledger` and `turns`: those of the earlier process. `on_end` gets the number of turns
        that were given again."""
        self._ledger = ledger
        self._turns = turns
        self._prompts = [ledger.before(turn.segment, turn.start) for turn in turns]
        self._parents = _parents(turns)
        self._unused = list(range(len(turns)))
        self._numbers: dict[int, int] = {}
        """Earlier numbers of turns by those that they have now."""
        self._on_end = on_end
        self.is_over = False

    def take(self, parent: int | None, prompt: Sequence[int], ledger: Ledger) -> Turn | None:
        """Enters the earlier reply to a request into the new `ledger`, and returns its turn. The
        request continues turn `parent`, or none, and would have this prompt."""
        if self.is_over:
            return None
        found = self._find(parent, array("i", prompt))
        if found is None:
            self._end()
            return None
        self._unused.remove(found)
        self._numbers[len(self._numbers)] = found
        if not self._unused:
            self._end()
        turn = self._turns[found]
        sampled = self._ledger.sampled(Span(turn.segment, turn.start, turn.stop))
        span = ledger.record(self._prompts[found], *sampled)
        place = {"segment": span.segment, "start": span.start, "stop": span.stop}
        return turn.model_copy(update=place)

    def _find(self, parent: int | None, prompt: "array[int]") -> int | None:
        earlier = None if parent is None else self._numbers.get(parent)
        for one in self._unused:
            continues = earlier is not None and self._parents[one] == earlier
            if continues or self._prompts[one] == prompt:
                return one
        return None

    def _end(self) -> None:
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
