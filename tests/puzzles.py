"""Puzzles of reasoning-gym with the library's own answers, for tests of their agent and recipe."""

import json
import sys
from collections import deque
from collections.abc import Iterator, Mapping
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


def posed(generator: str, seed: int, *, level: int | None = None, **data: Any) -> tuple[Task, str]:
    """Returns the task of a puzzle, and its right answer."""
    puzzle = Puzzle(generator=generator, level=level, seed=seed)
    _, entry = make(puzzle)
    if generator in BY_ENTRY:
        puzzle = puzzle.model_copy(update={"entry": json.loads(json.dumps(entry))})
    solve = SOLVERS.get(generator, own_answer)
    answer = solve(entry)
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


def cars_moved(entry: Mapping[str, Any]) -> str:
    """Solves a puzzle of `rush_hour`, to which the library has no answer, by breadth-first
    search."""
    start = _relabelled(entry["metadata"]["board_config"])
    came_from: dict[str, tuple[str, str]] = {}
    waiting = deque([start])
    while waiting:
        board = waiting.popleft()
        if board[17] == "A":  # the end of its row
            return " ".join(_path(board, start, came_from))
        for move, other in _moves(board):
            if other not in came_from and other != start:
                came_from[other] = board, move
                waiting.append(other)
    raise AssertionError("the puzzle has no solution")


def _relabelled(board: str) -> str:
    """Gives cars the letters that the question does, without gaps."""
    cars = sorted(set(board) - set("ox"))
    return board.translate({ord(car): chr(ord("A") + at) for at, car in enumerate(cars)})


def _path(board: str, start: str, came_from: Mapping[str, tuple[str, str]]) -> list[str]:
    moves: list[str] = []
    while board != start:
        board, move = came_from[board]
        moves.insert(0, move)
    return moves


def _moves(board: str) -> Iterator[tuple[str, str]]:
    """Yields moves by one square, and the boards after them."""
    for car in sorted(set(board) - set("ox")):
        cells = [at for at, one in enumerate(board) if one == car]
        stride = cells[1] - cells[0]
        for sign, edge in ((1, cells[-1]), (-1, cells[0])):
            to = edge + sign * stride
            is_inside = 0 <= to < 36 and (stride == 6 or to // 6 == edge // 6)
            if is_inside and board[to] == "o":
                after = list(board)
                after[to], after[cells[0] if sign == 1 else cells[-1]] = car, board[to]
                yield f"{car}{sign:+d}", "".join(after)


SOLVERS = {"boxnet": boxes_moved, "rush_hour": cars_moved}
