"""The problems that are written or generated in this repository, by the name of their data set."""

from collections.abc import Callable, Sequence
from functools import partial

from recipes.math_code.offline import code, math, stem
from recipes.math_code.rows import Problem

OFFLINE: dict[str, Callable[[], Sequence[Problem]]] = {
    "offline_math": partial(math.problems, "train"),
    "offline_math_heldout": partial(math.problems, "heldout"),
    "offline_code": partial(code.problems, "train"),
    "offline_code_heldout": partial(code.problems, "heldout"),
    "offline_stem": stem.problems,
}
