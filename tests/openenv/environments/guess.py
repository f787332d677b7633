"""An OpenEnv server whose environment hides a number: `GUESS_LOG=FILE guess.py PORT SESSIONS`.

Runs in `.venv-openenv`. Some numbers misbehave. Lines of FILE record what the server saw.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field, field_validator

UNLUCKY, HALF, RAISE, DIE, SLEEP, VAGUE = 13, 50, 99, 98, 97, 96
SPLITS = {"train": 5, "test": 2}
log = Path(os.environ["GUESS_LOG"])


def note(line: str) -> None:
    with log.open("a") as file:
        file.write(f"{line}\n")


class GuessAction(Action):
    """Guess the number."""

    number: int = Field(ge=0, le=100, description="Your guess.")

    @field_validator("number")
    @classmethod
    def _is_lucky(cls, number: int) -> int:
        if number == UNLUCKY:
            raise ValueError("that number brings bad luck")
        return number


class GuessObservation(Observation):
    hint: str
    guesses: list[int] = Field(default_factory=list)


class GuessEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._secret: int | None = None
        self._guesses: list[int] = []
        self._episode = ""

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        index: int | None = None,
        over: bool = False,
        **kwargs: Any,
    ) -> Observation:
        if index is not None and index >= 5:
            raise IndexError(f"there is no task {index}")
        self._secret = (seed or 0) + (index or 0)
        self._guesses = []
        self._episode = episode_id or "?"
        note(f"reset {self._episode}")
        return GuessObservation(
            hint="Guess a number up to 100.", done=over, metadata={"secret": self._secret}
        )

    def step(self, action: GuessAction, **kwargs: Any) -> Observation:
        note(f"step {self._episode} {action.number}")
        self._misbehave(action.number)
        self._guesses.append(action.number)
        is_right = action.number == self._secret
        reward: float | None = 1.0 if is_right else -0.25
        if action.number == VAGUE:
            reward = None
        hint = "right" if is_right else "wrong"
        return GuessObservation(hint=hint, guesses=self._guesses, reward=reward, done=is_right)

    def _misbehave(self, number: int) -> None:
        if number == RAISE:
            raise RuntimeError("the dice are lost")
        if number == DIE:
            os._exit(3)
        if number == SLEEP:
            time.sleep(3600)

    @property
    def state(self) -> State:
        return State(episode_id=self._episode, step_count=len(self._guesses))

    def close(self) -> None:
        if self._secret is not None:
            note(f"close {self._episode}")

    def list_splits(self) -> list[str]:
        return [*SPLITS]

    def num_tasks(self, split: str) -> int:
        return SPLITS[split]

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        return [{"question": f"{split} {index}"} for index in range(SPLITS[split])[start:stop]]


if __name__ == "__main__":
    app = create_app(
        GuessEnvironment,
        GuessAction,
        GuessObservation,
        env_name="guess",
        max_concurrent_envs=int(sys.argv[2]),
    )
    uvicorn.run(app, port=int(sys.argv[1]))
