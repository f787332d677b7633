"""The problems that are written or generated in this repository, by the name of their data set."""

from collections.abc import Callable, Sequence
from functools import partial

from recipes.common.data.splits import Split
from recipes.math_code.offline import code, files, look, math, stem
from recipes.math_code.rows import Problem


def _shell(split: Split) -> Sequence[Problem]:
    """Returns as many word problems as questions over files, in turn."""
    pairs = zip(math.problems(split), files.problems(split), strict=False)
    return [problem for pair in pairs for problem in pair]


OFFLINE: dict[str, Callable[[], Sequence[Problem]]] = {
    "offline_math": partial(math.problems, "train"),
    "offline_math_heldout": partial(math.problems, "heldout"),
    "offline_shell": partial(_shell, "train"),
    "offline_shell_heldout": partial(_shell, "heldout"),
    "offline_code": partial(code.problems, "train"),
    "offline_code_heldout": partial(code.problems, "heldout"),
    "offline_look": partial(look.problems, "train"),
    "offline_look_heldout": partial(look.problems, "heldout"),
    "offline_stem": stem.problems,
}
