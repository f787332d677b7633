"""Rewards of a Harbor verifier: its files read as Harbor 0.25 reads them, steps combined. Pure.

Unlike in Harbor, a JSON file that holds no rewards leaves the text file to count, if there is one:
some task sets write a report as JSON, for readers that take the text first.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from prorl_service.schemas.numbers import mean_of, shown

Rewards = Mapping[str, float]

JSON_FILE, TEXT_FILE = "reward.json", "reward.txt"


class NoReward(Exception):
    """The verifier left no reward that can be read. The message says why."""


@dataclass(frozen=True, slots=True)
class RewardFiles:
    """What the verifier left; None for a file that is not there."""

    json: bytes | None
    text: bytes | None

    def only(self, named: Sequence[str]) -> "RewardFiles":
        """Returns those that the tests name, if they name any: others come from what is tested."""
        if not named:
            return self
        return RewardFiles(
            self.json if JSON_FILE in named else None, self.text if TEXT_FILE in named else None
        )

    def read(self) -> tuple[Rewards, str]:
        """Returns the rewards, and a remark if not the first file counts. Raises `NoReward`."""
        if self.json is None and self.text is None:
            raise NoReward(f"the verifier wrote neither {JSON_FILE} nor {TEXT_FILE}")
        if self.json is None:
            return self._of_text_alone(), ""
        try:
            return _of_json(self.json), ""
        except NoReward as error:
            with suppress(NoReward):
                return self._of_text_alone(), f"{error}: {TEXT_FILE} counts"
            raise

    def _of_text_alone(self) -> Rewards:
        if self.text is None:
            raise NoReward(f"there is no {TEXT_FILE}")
        return {"reward": _of_text(self.text)}


def _of_text(content: bytes) -> float:
    try:
        value = float(content.decode())
    except ValueError:
        raise NoReward(f"{TEXT_FILE} holds no number: {content[:80]!r}") from None
    return _finite(value, TEXT_FILE)


def _of_json(content: bytes) -> Rewards:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise NoReward(f"{JSON_FILE} is no JSON: {content[:80]!r}") from None
    if not isinstance(found, dict) or not found:
        raise NoReward(f"{JSON_FILE} holds no object of rewards: {content[:80]!r}")
    return {key: _finite(value, f"{JSON_FILE}, {key!r}") for key, value in found.items()}


def _finite(value: object, where: str) -> float:
    try:
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond all floats
        pass
    raise NoReward(f"{where} is no finite number: {shown(value)}")


def combined(steps: Sequence[Rewards], *, final: bool) -> Rewards:
    """Returns the rewards of a task by those of its steps: the last one's, or means by key, in
    which a missing key counts as 0."""
    if final:
        return steps[-1]
    keys = dict.fromkeys(key for rewards in steps for key in rewards)
    return {key: mean_of(rewards.get(key, 0.0) for rewards in steps) or 0.0 for key in keys}


def falls_short(rewards: Rewards, least: Mapping[str, float]) -> bool:
    return any(rewards.get(key, -math.inf) < value for key, value in least.items())


def scalar(rewards: Rewards, key: str) -> float:
    """Returns the one that trains: of this key, or the only one. Raises `NoReward`."""
    if key in rewards:
        return rewards[key]
    if len(rewards) == 1:
        return next(iter(rewards.values()))
    raise NoReward(f"no reward is called {key!r}, only {', '.join(rewards)}: set `reward_key`")
