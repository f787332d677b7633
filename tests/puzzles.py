"""Puzzles of reasoning-gym with the library's own answers, for tests of their agent and recipe."""

import json
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from prorl_service.rewards.reasoning import BY_ENTRY, MODULE, Puzzle, make
from prorl_service.schemas import Message, Task
from recipes.math_code.data.puzzles import own_answer

LIBRARY = Path(__file__).parents[1] / ".venv-reasoning"

if LIBRARY.is_dir():
    sys.path.append(str(LIBRARY))  # last: what both have is .venv's

needs_library = pytest.mark.skipif(
    find_spec(MODULE) is None, reason="needs scripts/setup-reasoning"
)

WRONG = "7654321"
"""Answer that is wrong for all puzzles of these tests."""


def environment() -> dict[str, str]:
    """Returns variables of processes that import the library."""
    paths = [os.environ.get("PYTHONPATH"), str(LIBRARY)]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def posed(generator: str, seed: int, *, level: int | None = None, **data: Any) -> tuple[Task, str]:
    """Returns the task of a puzzle, and its right answer."""
    puzzle = Puzzle(generator=generator, level=level, seed=seed)
    _, entry = make(puzzle)
    if generator in BY_ENTRY:
        puzzle = puzzle.model_copy(update={"entry": json.loads(json.dumps(entry))})
    answer = boxes_moved(entry) if generator == "boxnet" else own_answer(entry)
    assert answer is not None
    task = Task(
        task_id=f"{generator}-{seed}",
        agent="reasoning_gym",
        messages=[Message(role="user", content=entry["question"])],
        data={**puzzle.model_dump(exclude_none=True), **data},
    )
    return task, answer


def boxes_moved(entry: Mapping[str, Any]) -> str:
    """Solves a puzzle of `boxnet`, to which the library has no answer: box after box goes to a
    target of its colour, square by square."""
    squares: dict[str, list[str]] = entry["metadata"]["initial_state"]
    targets = [(one, at) for at, items in squares.items() for one in items if "target_" in one]
    steps: list[dict[str, str]] = []
    for at, box in ((at, one) for at, items in squares.items() for one in items if "box_" in one):
        target = next(one for one in targets if one[0][7:] == box[4:])
        targets.remove(target)
        x, y = map(float, at.split("_"))
        goal_x, goal_y = map(float, target[1].split("_"))
        while (x, y) != (goal_x, goal_y):
            agent = f"Agent[{x}, {y}]"
            if x != goal_x:
                x += 1 if goal_x > x else -1
            else:
                y += 1 if goal_y > y else -1
            steps.append({agent: f"move({box}, square[{x}, {y}])"})
        steps.append({f"Agent[{x}, {y}]": f"move({box}, {target[0]})"})
    return json.dumps(steps)
