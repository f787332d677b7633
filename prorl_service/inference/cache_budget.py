"""Admission by the engines' KV cache: which rollouts may sample, so that their contexts fit it.

A rollout that is admitted goes on growing, so a controller that only reacts is late. The budget is
therefore spent in advance, on the length that each context is expected to reach. Rollouts are
admitted in the order in which they asked; where estimates or the cache fall short, the youngest
wait before their next turn, and continue first. Nothing is cancelled: between turns a rollout holds
no cache that an engine could not reuse. Knows nothing of engines, networks and clocks.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from prorl_service.schemas import CacheStatus, EngineGauges

REMEMBERED = 64
"""Ended rollouts of an agent from which the length of its next ones is expected."""
FIRST_GUESS = 0.5
"""Share of its limit that a rollout is expected to use before any of its agent's has ended."""
FULL = 0.9
"""Share of a cache in use from which calls that wait at the engine wait for the cache."""
CUT = 0.9
"""Factor of an engine's share after it has preempted calls, or let them wait for its cache."""
LEAST_SHARE = 0.5
RECOVERY = 0.01
"""Part of its cache that an engine regains at each probe that shows neither."""


@dataclass(slots=True)
class EngineCache:
    """The cache of one engine, and the share of it that is handed out."""

    gauges: EngineGauges | None = None
    """Newest gauges; None: the engine says nothing."""
    share: float = 1.0

    def observe(self, gauges: EngineGauges | None) -> None:
        before, self.gauges = self.gauges, gauges
        if gauges is None:
            return
        has_preempted = before is not None and gauges.preemptions > before.preemptions
        if has_preempted or (gauges.waiting and gauges.kv_use >= FULL):
            self.share = max(LEAST_SHARE, self.share * CUT)
        else:
            self.share = min(1.0, self.share + RECOVERY)

    @property
    def budget_tokens(self) -> int | None:
        """Tokens to hand out; None if the engine does not say how many it can hold."""
        if self.gauges is None or self.gauges.kv_tokens is None:
            return None
        return int(self.share * self.gauges.kv_tokens)


@dataclass(slots=True, eq=False)
class CachePlace:
    """A rollout's place in the line for the cache."""

    agent: str
    group: str
    prompt_tokens: int
    """Tokens of the first prompt, which a group's rollouts share."""
    most_tokens: int
    """Most tokens that may follow the prompt."""
    tokens: int = 0
    """Tokens that have followed it so far; 0 before the first turn."""
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the rollout may begin its next turn."""
    has_begun: bool = False
    """True once it has been admitted."""


class CacheBudget:
    """All methods belong to the event loop."""

    def __init__(self) -> None:
        self._budget: int | None = None
        self._engines = 1
        self._line: dict[CachePlace, None] = {}
        """Places in the order of their arrival."""
        self._lengths: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        """Tokens after the prompt that ended rollouts needed, by agent."""
        self._sums: dict[str, tuple[int, int]] = {}
        """Sum and number of these lengths."""
        self._expected = 0

    def set_engines(self, caches: Sequence[EngineCache]) -> None:
        """Takes over the engines that may sample. One that says nothing turns the budget off, since
        any call may go to it."""
        budgets = [one.budget_tokens for one in caches]
        known = [one for one in budgets if one is not None]
        budget = sum(known) if known and len(known) == len(budgets) else None
        if (budget, len(budgets)) != (self._budget, self._engines):
            self._budget, self._engines = budget, len(budgets)
            self._admit()

    def join(self, place: CachePlace) -> None:
        """Puts a rollout at the end of the line."""
        self._line[place] = None
        self._admit()

    def grow(self, place: CachePlace, context_tokens: int) -> None:
        """Notes the length of a context of the rollout after a turn."""
        before = self._expected_of(place)
        place.tokens = max(place.tokens, context_tokens - place.prompt_tokens)
        if self._expected_of(place) != before:
            self._admit()

    def leave(self, place: CachePlace) -> None:
        """Frees the place of a rollout that samples no more, and learns from it. One that has left
        before is ignored."""
        if place not in self._line:
            return
        del self._line[place]
        place.admitted.set()  # a turn that waits for it finds that the rollout has ended
        if place.tokens:
            lengths = self._lengths[place.agent]
            lengths.append(place.tokens)
            self._sums[place.agent] = sum(lengths), len(lengths)
        self._admit()

    def status(self) -> CacheStatus | None:
        """Returns None while the budget is off."""
        if self._budget is None:
            return None
        waiting = [one for one in self._line if not one.admitted.is_set()]
        return CacheStatus(
            budget_tokens=self._budget,
            expected_tokens=self._expected,
            admitted=len(self._line) - len(waiting),
            held=sum(one.has_begun for one in waiting),
            waiting=sum(not one.has_begun for one in waiting),
        )

    def _expected_of(self, place: CachePlace) -> int:
        """Returns the tokens after its prompt that a rollout will need; a guess counts as one
        rollout among those that have ended."""
        guess = FIRST_GUESS * place.most_tokens
        total, ended = self._sums.get(place.agent, (0, 0))
        expected = round((guess + total) / (1 + ended))
        return max(place.tokens, min(place.most_tokens, expected))

    def _admit(self) -> None:
        """Admits the first of the line, as many as fit, and at least one."""
        siblings = Counter[str]()
        expected, fits = 0, True
        for place in self._line:
            needed = self._expected_of(place)
            if siblings[place.group] < self._engines:  # each engine caches the prompt once
                needed += place.prompt_tokens
            fits = fits and (
                self._budget is None or not expected or expected + needed <= self._budget
            )
            if not fits:
                place.admitted.clear()
                continue
            siblings[place.group] += 1
            expected += needed
            place.has_begun = True
            place.admitted.set()
        self._expected = expected
