"""Puzzles of reasoning-gym as a data set: generators, levels, how many of each, splits.

The question decides the split, so that no seed, count or level brings a question into both. A
puzzle whose own answer does not score, or that takes too long to make, is a row that says why.
"""

import hashlib
import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import version
from itertools import islice
from random import Random
from typing import Any, get_args

from prorl_service.errors import InvalidRequest, ProRLError
from prorl_service.rewards import reasoning
from prorl_service.rewards.reasoning import REFUSED, Puzzle
from recipes.common.data.fields import Row
from recipes.common.data.sources import Source
from recipes.common.data.splits import Split
from recipes.math_code.data.questions import key
from recipes.math_code.rows import ReasoningProblem

DATA_SET = "reasoning_gym"
DEFAULT_GENERATORS = (
    "basic_arithmetic",
    "chain_sum",
    "letter_counting",
    "number_sequence",
    "spell_backward",
    "word_sorting",
)
HELDOUT_ONE_IN = 5
TRIES_PER_PUZZLE = 20
"""Seeds to try for each wanted puzzle: levels with few questions repeat them."""
MAX_FAULTS = 3
"""Consecutive faults after which a level is given up."""
LONGEST_S = 2.0
"""Longest CPU time to make a puzzle: the service makes it again within its limit of five."""


@dataclass(frozen=True, slots=True)
class Puzzles:
    """Options of this data set. `levels`: None: all that a generator has."""

    generators: tuple[str, ...] = DEFAULT_GENERATORS
    levels: tuple[int, ...] | None = None
    count: int = 200
    """Puzzles of each generator and level, in a split."""
    seed: int = 0


def source(options: Puzzles, split: str | None) -> Source:
    """Raises `InvalidRequest`, and `ProRLError` without the library."""
    try:
        chosen = _checked(options)
    except ImportError as error:
        raise ProRLError(
            f"puzzles need the package reasoning-gym: {error}",
            hint="pip install 'prorl-service[reasoning]'; in a checkout, scripts/setup-reasoning",
        ) from error
    name = split or "train"
    if name not in get_args(Split):
        raise InvalidRequest.of_field("split", f"there is no {name!r}, only train and heldout")
    rows = (
        row
        for generator, level in chosen
        for row in _rows(generator, level, options, "heldout" if name == "heldout" else "train")
    )
    return Source("reasoning-gym", version("reasoning-gym"), name, rows, None)


def from_row(row: Row) -> ReasoningProblem:
    """Raises `RowError` for a puzzle that cannot be used."""
    if row.has("fault"):
        raise row.error(row.text("fault"), row.text("detail"))
    return ReasoningProblem.model_validate(row.fields)


def split_of(question: str) -> Split:
    digest = hashlib.sha256(key(question).encode()).digest()
    return "heldout" if int.from_bytes(digest[:4]) % HELDOUT_ONE_IN == 0 else "train"


def own_answer(entry: Mapping[str, Any]) -> str | None:
    """Returns the library's answer to its own puzzle; None if it has none."""
    if entry["answer"] is not None:
        return str(entry["answer"])
    possible = entry["metadata"].get("possible_answer")
    return None if possible is None else json.dumps(possible)


def _checked(options: Puzzles) -> list[tuple[str, int | None]]:
    """Returns generators with their levels; None for one that has no levels."""
    known = reasoning.generators()
    names = options.generators
    if names == ("all",):
        names = tuple(name for name in known if name not in REFUSED)
    chosen: list[tuple[str, int | None]] = []
    for name in names:
        if name not in known:
            near = ", ".join(get_close_matches(name, known)) or "`all` takes all of them"
            raise InvalidRequest.of_field("generators", f"there is no {name!r}", hint=near)
        if reason := REFUSED.get(name):
            raise InvalidRequest.of_field("generators", f"{name!r} is refused: {reason}")
        has = range(reasoning.levels(name))
        levels = [one for one in options.levels or has if one in has]
        chosen += [(name, level) for level in levels] if has else [(name, None)]
    if not chosen:
        raise InvalidRequest.of_field("levels", "no generator has any of these levels")
    return chosen


def _rows(
    generator: str, level: int | None, options: Puzzles, split: Split
) -> Iterator[Mapping[str, Any]]:
    seeds = _seeds(f"{options.seed}:{generator}:{level}")
    asked: set[str] = set()
    faults = 0
    for seed in islice(seeds, TRIES_PER_PUZZLE * options.count):
        try:
            made = _problem(Puzzle(generator=generator, level=level, seed=seed))
        except _Fault as fault:
            yield {"fault": fault.reason, "detail": f"{generator}, level {level}, seed {seed}"}
            faults += 1
            if faults == MAX_FAULTS:
                return
            continue
        faults = 0
        if split_of(made.question) != split or key(made.question) in asked:
            continue
        asked.add(key(made.question))
        yield made.model_dump()
        if len(asked) == options.count:
            return


def _seeds(name: str) -> Iterator[int]:
    random = Random(name)
    while True:
        yield random.randrange(2**32)


class _Fault(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _problem(puzzle: Puzzle) -> ReasoningProblem:
    """Raises `_Fault` if the puzzle cannot be trained on."""
    try:
        with _cpu_limit(LONGEST_S):
            data_set, entry = reasoning.make(puzzle)
            answer = own_answer(entry)
            score = 0.0 if answer is None else float(data_set.score_answer(answer, entry))
    except TimeoutError:
        raise _Fault(f"it takes more than {LONGEST_S:g} s to make") from None
    except Exception as error:  # generators of others, at levels that they were not tried at
        raise _Fault(f"the library cannot make it: {error!r}"[:200]) from error
    if answer is None:
        raise _Fault("the library has no answer to check with")
    if score < 1:
        raise _Fault("the library's own answer does not score 1")
    kept = json.loads(json.dumps(entry)) if puzzle.generator in reasoning.BY_ENTRY else None
    return ReasoningProblem(
        problem_id=f"{puzzle.generator}-{puzzle.level or 0}-{puzzle.seed}",
        source=DATA_SET,
        question=str(entry["question"]).strip(),
        **puzzle.model_copy(update={"entry": kept}).model_dump(),
    )


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Raises `TimeoutError` in the block once it has used so much CPU time. For the main thread."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def by_level(problems: Sequence[ReasoningProblem]) -> dict[int, list[ReasoningProblem]]:
    """Returns the problems of each level, lowest first."""
    found: dict[int, list[ReasoningProblem]] = {}
    for one in sorted(problems, key=lambda problem: problem.level or 0):
        found.setdefault(one.level or 0, []).append(one)
    return found
