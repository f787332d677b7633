"""The choice among candidates by difficulty: those whose groups were seldom informative lately are
mostly passed over. Pure, and the same for the same seed and the same order of events.

It chooses by the difficulty that tasks name, and knows nothing of single tasks, whose last groups
`WaitingCandidates` remembers.
"""

import hashlib
from collections import deque
from collections.abc import Iterable

from pydantic import Field

from prorl_service.sampling.filter import GroupState
from prorl_service.schemas import Difficulty, WireModel
from prorl_service.schemas.sampling import Curriculum


class Recent(WireModel):
    """Whether the last groups of a difficulty were informative, oldest first."""

    difficulty: Difficulty
    informative: list[bool]


class CurriculumState(WireModel):
    choices: int = 0
    """Number of choices so far, of which each has a random number of its own."""
    recent: list[Recent] = Field(default_factory=list)


class LevelChooser:
    """Chooses candidates of a sampler; all of them if `spec` is None."""

    def __init__(self, spec: Curriculum | None) -> None:
        self._spec = spec
        self._choices = 0
        self._recent: dict[Difficulty, deque[bool]] = {}
        self._best: float | None = None
        """The highest share; None if it may have changed."""

    def note(self, difficulty: Difficulty | None) -> None:
        """Notes that a candidate of the difficulty came."""
        if self._spec is not None and difficulty is not None and difficulty not in self._recent:
            self._recent[difficulty] = deque(maxlen=self._spec.window)
            self._best = None

    def remember(self, difficulty: Difficulty | None, state: GroupState) -> None:
        """Notes how a group ended. One that failed says nothing of its difficulty."""
        self.note(difficulty)
        if difficulty in self._recent and state is not GroupState.FAILED:
            self._recent[difficulty].append(state is GroupState.INFORMATIVE)
            self._best = None

    def share(self, difficulty: Difficulty) -> float:
        """Returns the share of informative groups, as if one more had been: 1 for a new one."""
        recent = self._recent.get(difficulty, ())
        return (sum(recent) + 1) / (len(recent) + 1)

    def passes_over(self, difficulty: Difficulty | None) -> bool:
        if self._spec is None or difficulty is None:
            return False
        self.note(difficulty)
        if self._best is None:
            self._best = max(map(self.share, self._recent))
        self._choices += 1
        return _uniform(self._spec.seed, self._choices) * self._best >= self.share(difficulty)

    def state(self) -> CurriculumState | None:
        if self._spec is None:
            return None
        recent = [
            Recent(difficulty=one, informative=[*outcomes])
            for one, outcomes in self._recent.items()
        ]
        return CurriculumState(choices=self._choices, recent=recent)

    def restore(self, state: CurriculumState | None) -> None:
        if self._spec is None or state is None:
            return
        self._choices, self._best = state.choices, None
        self._recent = {
            one.difficulty: _window(one.informative, self._spec.window) for one in state.recent
        }


def _window(outcomes: Iterable[bool], size: int) -> deque[bool]:
    return deque(outcomes, maxlen=size)


def _uniform(seed: int, number: int) -> float:
    """Returns a number in [0, 1) that depends on nothing else, not on the version of Python."""
    digest = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48
