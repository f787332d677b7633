"""Questions that only somebody who sees can answer: which colour has the square in a picture?

The picture is in the question, or in a file that the policy has to look at with a tool. Chance is a
quarter. Instances are a pure function of the seed. A policy begins by imitating well-formed
replies with any of the answers: what it sees is left to reinforcement learning.
"""

import base64
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image, ImageDraw

from prorl_service.agents.math import MathAgent
from prorl_service.inference.reference_engine.imitation import Imitation
from prorl_service.schemas import Limits, Message, Picture, Task
from recipes.common.data.splits import Split
from recipes.common.training import imitation
from recipes.common.training.imitation import Transcript, tool_call
from recipes.math_code.rows import MathProblem, Problem

SOURCE = "offline_look"
COUNTS: dict[Split, int] = {"train": 400, "heldout": 100}
"""Problems of each kind."""
COLOURS = {"1": (220, 30, 30), "2": (30, 200, 30), "3": (40, 60, 220), "4": (230, 220, 40)}
"""Colours by the answer that means them."""
SIDE, SQUARE = 56, 30
"""Sides of the picture, which has four tokens of a tiny model, and of the square, in pixels."""
LIGHTEST, SPREAD = 40, 25
FILE = "a.ppm"
LIMITS = Limits(max_turns=2, max_response_tokens=64)
CONTEXT = 256
TRANSCRIPTS = 400
WARM_START = Imitation(steps=150, batch_size=16, learning_rate=5e-3)
VOCAB_SIZE = 512


@dataclass(frozen=True, slots=True)
class Look:
    name: str
    number: int
    """Number that the question begins with. With a batch whose rows all have the same number of
    tokens, VeRL 0.9.1 takes the positions of their pictures for another dimension, and fails."""
    picture: Image.Image
    answer: str
    is_file: bool

    def problem(self) -> MathProblem:
        place = f"in {FILE}" if self.is_file else "it"
        return MathProblem(
            problem_id=self.name,
            source=SOURCE,
            question=f"{self.number}: which colour is {place}?",
            answer=self.answer,
            pictures=[] if self.is_file else [self._part()],
            files={FILE: _as_text(self.picture)} if self.is_file else {},
        )

    def task(self) -> Task:
        """Returns the task with no other tool than it needs."""
        tools = ["view_image"] if self.is_file else []
        return self.problem().task({"answer_format": "plain", "tools": tools})

    def imitated(self, rng: Random, options: Mapping[str, Any] | None) -> Transcript:
        task = self.task() if options is None else self.problem().task(options)
        prompt, answer = MathAgent(task).prompt(), rng.choice([*COLOURS])
        if not self.is_file:
            return Transcript(prompt, [answer], [])
        looks = tool_call("view_image", {"path": FILE})
        seen = Message(role="tool", content="", pictures=[self._part()])
        return Transcript(prompt, [looks, answer], [seen])

    def _part(self) -> Picture:
        file = io.BytesIO()
        self.picture.save(file, "PNG")
        return Picture(data=base64.b64encode(file.getvalue()).decode())


def instances(split: str, *, seed: int, is_file: bool) -> Iterator[Look]:
    rng = Random(f"{split}/{seed}")
    while True:
        answer = rng.choice([*COLOURS])
        picture = Image.new("RGB", (SIDE, SIDE), _near(rng, (LIGHTEST // 2,) * 3, LIGHTEST // 2))
        x, y = (rng.randrange(SIDE - SQUARE) for _ in range(2))
        square = (x, y, x + SQUARE, y + SQUARE)
        ImageDraw.Draw(picture).rectangle(square, _near(rng, COLOURS[answer], SPREAD))
        name, number = f"{split}-{rng.getrandbits(40):010x}", rng.randrange(10 ** rng.randint(1, 3))
        yield Look(name, number, picture, answer, is_file)


def problems(split: Split, *, seed: int = 0) -> list[Problem]:
    """Returns as many with a picture as with a file, in turn."""
    kinds = [instances(split, seed=2 * seed + place, is_file=place == 1) for place in range(2)]
    return [next(kind).problem() for _ in range(COUNTS[split]) for kind in kinds]


def _near(rng: Random, colour: tuple[int, ...], spread: int) -> tuple[int, ...]:
    return tuple(min(255, max(0, one + rng.randint(-spread, spread))) for one in colour)


def _as_text(picture: Image.Image) -> str:
    """Returns a PPM file of numbers: files of tasks are text."""
    numbers = " ".join(map(str, picture.tobytes()))
    return f"P3 {picture.width} {picture.height} 255 {numbers}\n"


def policy(
    cache: Path,
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    extent: Imitation = WARM_START,
    vocab_size: int = VOCAB_SIZE,
) -> Path:
    """Returns the directory of a model that answers both kinds of questions without looking.
    `options` of all tasks; None: each has only the tool that it needs."""
    rng = Random(f"imitated/{seed}")
    kinds = [instances("warm", seed=seed, is_file=is_file) for is_file in (False, True)]
    shown = [next(rng.choice(kinds)).imitated(rng, options) for _ in range(TRANSCRIPTS)]
    return imitation.warm_started(cache, shown, extent, vocab_size, sees=True)
