"""Puzzles of reasoning-gym (https://github.com/open-thought/reasoning-gym), scored by the library's
own verifiers.

A puzzle is made again from its generator, level and seed, so that a task need not hold its answer.
Verifiers were written for honest answers. Some evaluate the answer as Python: `REFUSED` names them,
and `score_puzzle` gives them nothing but literals and arithmetic. Call all of this through a
`ScoringPool`: the library takes two seconds and 250 MB to import, and some answers never end.
"""

import copy
import json
import math
import os
import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

MODULE, EXTRA = "reasoning_gym", "reasoning"
"""The library's module, and the extra of this package that installs it."""

MAX_ANSWER_CHARS = 32_000
"""Maximum length of an answer. A longer one is wrong: the policy is repeating itself."""
KEPT = 16
"""Puzzles that a process keeps: the answers of a group come one after the other."""

_NAMES = "[a-zA-Z]|sqrt|exp|log|ln|pi|a?(?:sin|cos|tan)h?|sec|csc|cot"
_ARITHMETIC = re.compile(
    rf"(?:[0-9+\-*/^(),\s]|(?<=\d)\.(?=\d)|(?<![\w.])(?:{_NAMES})(?![\w.]))*", re.ASCII
)
_LITERALS = re.compile(r"[\w\s\[\],'\"\-]*", re.ASCII)

_TABLES = tomllib.loads(Path(__file__).with_name("generators.toml").read_text())
_FORMS = {"literals": _LITERALS, "arithmetic": _ARITHMETIC}
EVALUATED = {name: _FORMS[form] for name, form in _TABLES["evaluated"].items()}
UNSOUND: dict[str, str] = _TABLES["unsound"]
BY_ENTRY: frozenset[str] = frozenset(_TABLES["by_entry"])
REFUSED = dict.fromkeys(EVALUATED, "its verifier evaluates the answer as Python") | UNSOUND
"""Generators that tasks may not name by default, and why."""


class Puzzle(BaseModel):
    """One puzzle of the library."""

    model_config = ConfigDict(extra="forbid")

    generator: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,60}$")] = Field(
        description="The library's name of the generator."
    )
    level: int | None = Field(
        None, ge=0, description="Level of the generator's curriculum; None: the library's defaults."
    )
    seed: int = Field(ge=0, lt=2**32)
    entry: dict[str, JsonValue] | None = Field(
        None, description="The library's entry; None: it is made from the seed."
    )


def make(puzzle: Puzzle) -> tuple[Any, dict[str, Any]]:
    """Returns the library's data set, which scores, and the puzzle's entry.

    Raises `ValueError` for a generator or level that the library lacks, and whatever the library
    raises.
    """
    name = puzzle.generator
    if name not in _factory().DATASETS:
        raise ValueError(f"reasoning-gym has no generator {name!r}")
    data_set = _factory().create_dataset(
        name, **_configuration(name, puzzle.level) | {"seed": puzzle.seed, "size": 1}
    )
    return data_set, data_set[0] if puzzle.entry is None else puzzle.entry


def levels(generator: str) -> int:
    """Returns the number of levels that the generator's curriculum has; 0 if it has none."""
    if not _factory().has_curriculum(generator):
        return 0
    attributes = _factory().create_curriculum(generator).attributes.values()
    return max((len(one.levels) for one in attributes), default=0)


def generators() -> list[str]:
    """Returns the names of all generators of the library, refused ones too."""
    return sorted(_factory().DATASETS)


def check_puzzle(puzzle: str, question: str) -> float:
    """Returns 1.0. `puzzle`: JSON of a `Puzzle`. Raises `ValueError` if it cannot be made, or has
    another question, as another version of the library may make."""
    _, entry = _made(puzzle)
    if str(entry["question"]).strip() not in question:
        raise ValueError("reasoning-gym makes another question here: prepare the task again")
    return 1.0


def score_puzzle(answer: str, puzzle: str) -> float:
    """Returns the library's score, from 0.0 to 1.0, the score of a right answer.

    `puzzle`: JSON of a `Puzzle`. An answer that the verifier cannot read is wrong.
    """
    data_set, entry = _made(puzzle)
    evaluated = EVALUATED.get(Puzzle.model_validate_json(puzzle).generator)
    if len(answer) > MAX_ANSWER_CHARS or (evaluated and not evaluated.fullmatch(answer)):
        return 0.0
    try:
        score = float(data_set.score_answer(answer, copy.deepcopy(entry)))
    except MemoryError:
        raise
    except Exception:  # a verifier raises anything on answers that it did not expect
        return 0.0
    return min(max(score, 0.0), 1.0) if math.isfinite(score) else 0.0


@lru_cache(maxsize=KEPT)
def _made(puzzle: str) -> tuple[Any, dict[str, Any]]:
    return make(Puzzle.model_validate(json.loads(puzzle)))


@lru_cache(maxsize=1)
def _factory() -> Any:
    """Imports the library late: only the scoring workers should pay for it."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each thread reserves memory
    os.environ.setdefault("MPLBACKEND", "agg")
    from reasoning_gym import factory

    return factory


def _configuration(generator: str, level: int | None) -> dict[str, Any]:
    """Returns the generator's settings: each attribute at this level, or at its highest."""
    if level is None:
        return {}
    if level >= (count := levels(generator)):
        raise ValueError(f"generator {generator!r} has {count} levels: {level} is not one of them")
    from reasoning_gym.coaching.base_curriculum import (
        DefaultCurriculumContext,
        RangeAttributeMode,
    )

    curriculum = _factory().create_curriculum(generator)
    curriculum.set_global_level(level)
    only_this = DefaultCurriculumContext(RangeAttributeMode.UPPER_BOUND)
    made = curriculum.generate_configuration({"seed": 0, "size": 1}, only_this)
    return dict(vars(made))
