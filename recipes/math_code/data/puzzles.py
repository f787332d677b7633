"""Puzzles of reasoning-gym as a data set: generators, levels, how many of each, splits.

The question decides the split, so that no seed, count or level brings a question into both. A
puzzle whose own answer does not score, or that takes too long to make, is a row that says why.
"""

import hashlib
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import version
from itertools import islice
from random import Random
from typing import Any, get_args

from pebble import ProcessExpired, ProcessPool

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
LONGEST_S = 2
"""Longest CPU time to make a puzzle: the service makes it again within its limit of five."""
HASH_SEED = "PYTHONHASHSEED"
LONGEST_WAIT_S = 300.0
"""Longest wait for it, on a busy host."""


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
    rows = _all_rows(chosen, options, "heldout" if name == "heldout" else "train")
    return Source("reasoning-gym", version("reasoning-gym"), name, rows, None)


def _all_rows(
    chosen: Sequence[tuple[str, int | None]], options: Puzzles, split: Split
) -> Iterator[Mapping[str, Any]]:
    maker = _Maker()
    try:
        for generator, level in chosen:
            yield from _rows(generator, level, options, split, maker)
    finally:
        maker.close()


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
    for name in ("possible_answer", "example_answer", "example_correct_answer"):
        if (possible := entry["metadata"].get(name)) is not None:
            return possible if isinstance(possible, str) else json.dumps(possible)
    return None


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
    generator: str, level: int | None, options: Puzzles, split: Split, maker: "_Maker"
) -> Iterator[Mapping[str, Any]]:
    seeds = _seeds(f"{options.seed}:{generator}:{level}")
    asked: set[str] = set()
    faults = 0
    for seed in islice(seeds, TRIES_PER_PUZZLE * options.count):
        row = maker.row(Puzzle(generator=generator, level=level, seed=seed))
        if "fault" in row:
            yield row
            faults += 1
            if faults == MAX_FAULTS:
                return
            continue
        faults = 0
        if split_of(row["question"]) != split or key(row["question"]) in asked:
            continue
        asked.add(key(row["question"]))
        yield row
        if len(asked) == options.count:
            return


def _seeds(name: str) -> Iterator[int]:
    random = Random(name)
    while True:
        yield random.randrange(2**32)


class _Maker:
    """Makes puzzles in a process that can be killed: some generators never end on some seeds. Its
    hashes of texts are always the same, so that the order of its sets is, too."""

    def __init__(self) -> None:
        self._hash_seed = os.environ.get(HASH_SEED)
        os.environ[HASH_SEED] = "0"
        self._pool = ProcessPool(max_workers=1, context=multiprocessing.get_context("spawn"))

    def row(self, puzzle: Puzzle) -> dict[str, Any]:
        """Returns the puzzle's row, or one that says why it cannot be used."""
        where = f"{puzzle.generator}, level {puzzle.level}, seed {puzzle.seed}"
        try:
            made: dict[str, Any] = self._pool.schedule(
                _made_in_time, args=[puzzle], timeout=LONGEST_WAIT_S
            ).result()
        except (ProcessExpired, FutureTimeout):
            return {"fault": f"it takes more than {LONGEST_S} s to make", "detail": where}
        return {**made, "detail": where} if "fault" in made else made

    def close(self) -> None:
        self._pool.stop()
        self._pool.join()
        del os.environ[HASH_SEED]
        if self._hash_seed is not None:
            os.environ[HASH_SEED] = self._hash_seed


def _made_in_time(puzzle: Puzzle) -> dict[str, Any]:
    """Returns a row. The kernel ends the process if that takes more than `LONGEST_S`."""
    reasoning.generators()  # imports the library
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + LONGEST_S + 1, hard))
    try:
        return _made(puzzle)
    except Exception as error:  # generators of others, at levels that they were not tried at
        return {"fault": f"the library cannot make it: {error!r}"[:200]}


def _made(puzzle: Puzzle) -> dict[str, Any]:
    data_set, entry = reasoning.make(puzzle)
    answer = own_answer(entry)
    if answer is None:
        return {"fault": "the library has no answer to check with"}
    if data_set.score_answer(answer, entry) < 1:
        return {"fault": "the library's own answer does not score 1"}
    kept = json.loads(json.dumps(entry)) if puzzle.generator in reasoning.BY_ENTRY else None
    problem = ReasoningProblem(
        problem_id=f"{puzzle.generator}-{puzzle.level or 0}-{puzzle.seed}",
        source=DATA_SET,
        question=str(entry["question"]).strip(),
        **puzzle.model_copy(update={"entry": kept}).model_dump(),
    )
    return problem.model_dump()


def by_level(problems: Sequence[ReasoningProblem]) -> dict[int, list[ReasoningProblem]]:
    """Returns the problems of each level, lowest first."""
    found: dict[int, list[ReasoningProblem]] = {}
    for one in sorted(problems, key=lambda problem: problem.level or 0):
        found.setdefault(one.level or 0, []).append(one)
    return found
