"""Questions over a small file tree of six families, each answered by one right shell command.

Files are made for each problem, so that only a command in the sandbox finds the answer. A pure
function of the seed: the held-out split shares no file with the training split.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import TypeAlias

from recipes.common.data.splits import Split, keys_of
from recipes.math_code.offline.examples import Attempt, Example
from recipes.math_code.rows import MathProblem, Problem

SOURCE = "offline_shell"
COUNT = 1000
"""Problems of both splits together."""
FOLDERS = ("notes", "data", "logs", "plans", "lists", "old")
NAMES = ("milk", "garden", "train", "music", "winter", "market", "bridge", "river", "stone", "lamp")
LINES, PER_LINE, FILES = range(3, 10), range(1, 4), range(2, 6)

Tree: TypeAlias = dict[str, list[list[int]]]
"""The numbers of each line of each file, keyed by path."""


@dataclass(frozen=True, slots=True)
class Family:
    """`command` with a `{path}` or `{folder}`; `result` is what it prints."""

    name: str
    question: str
    command: str
    result: Callable[[Tree, str], int]


def _numbers(tree: Tree, path: str) -> list[int]:
    return [number for line in tree[path] for number in line]


_NUMBERS = "grep -o '[0-9]*' {path}"
FAMILIES = (
    Family(
        "lines",
        "How many lines does {path} have?",
        "wc -l < {path}",
        lambda tree, path: len(tree[path]),
    ),
    Family(
        "words",
        "How many numbers are in {path}?",
        "wc -w < {path}",
        lambda tree, path: len(_numbers(tree, path)),
    ),
    Family(
        "files",
        "How many files are in the folder {folder}?",
        "ls {folder} | wc -l",
        lambda tree, _: len(tree),
    ),
    Family(
        "first",
        "Which number comes first in {path}?",
        f"{_NUMBERS} | head -1",
        lambda tree, path: _numbers(tree, path)[0],
    ),
    Family(
        "last",
        "Which number comes last in {path}?",
        f"{_NUMBERS} | tail -1",
        lambda tree, path: _numbers(tree, path)[-1],
    ),
    Family(
        "largest",
        "Which number in {path} is the largest?",
        f"{_NUMBERS} | sort -n | tail -1",
        lambda tree, path: max(_numbers(tree, path)),
    ),
)


def examples(split: Split, *, seed: int = 0) -> list[Example]:
    """Returns examples; the families take turns."""
    keys = keys_of(split, range(COUNT), seed=seed)
    return [_example(family, key) for family, key in zip(cycle(FAMILIES), keys, strict=False)]


def problems(split: Split, *, seed: int = 0) -> list[Problem]:
    return [example.problem for example in examples(split, seed=seed)]


def _example(family: Family, key: int) -> Example:
    folder, path, tree = _tree(key)
    attempts = [
        _attempt(one.command.format(path=path, folder=folder), one.result(tree, path))
        for one in FAMILIES
    ]
    right = FAMILIES.index(family)
    problem = MathProblem(
        problem_id=f"{family.name}-{key}",
        source=SOURCE,
        question=family.question.format(path=path, folder=folder),
        answer=attempts[right].output,
        files={name: _text(lines) for name, lines in tree.items()},
    )
    return Example.of(problem, attempts, right)


def _attempt(command: str, result: int) -> Attempt:
    return Attempt("bash", {"command": command}, str(result), rf"\boxed{{{result}}}")


def _tree(key: int) -> tuple[str, str, Tree]:
    """Returns a folder, one of its files, and all its files: every family has another result."""
    rng = Random(key)
    folder = f"{rng.choice(FOLDERS)}{key}"
    while True:
        names = rng.sample(NAMES, rng.choice(FILES))
        tree = {f"{folder}/{name}.txt": _lines(rng) for name in names}
        path = f"{folder}/{names[0]}.txt"
        if len({family.result(tree, path) for family in FAMILIES}) == len(FAMILIES):
            return folder, path, tree


def _lines(rng: Random) -> list[list[int]]:
    return [
        [rng.randrange(10, 100) for _ in range(rng.choice(PER_LINE))]
        for _ in range(rng.choice(LINES))
    ]


def _text(lines: list[list[int]]) -> str:
    return "".join(" ".join(map(str, line)) + "\n" for line in lines)
