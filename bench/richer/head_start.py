"""Head starts, on a task that is hardly ever solved.

The demo's agent has to follow two or three files, each of which names the next, to the number in
the last; a policy that imitates mostly wrong commands finds it in two of a hundred rollouts, or in
three of a thousand. Both contenders train on informative groups (dynamic sampling); a step is as
many rollouts as a step without that costs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bench import frame
from prorl_service import local
from prorl_service.agents.math import MathAgent
from prorl_service.client import RolloutClient
from prorl_service.schemas import (
    Limits,
    Message,
    Task,
)
from prorl_service.schemas.sampling import SamplerSpec
from recipes.common.training import imitation
from recipes.common.training.imitation import Transcript, tool_call
from recipes.demo.demonstrations import RIGHT_SHARE
from recipes.demo.evaluate import evaluate, success
from recipes.demo.tasks import CONTEXT, SYSTEM_PROMPT
from recipes.demo.train import TrainConfig, make_trainer
from recipes.demo.warm_start import VOCAB_SIZE, WarmStart

SEEDS = 3
CACHE = Path("outputs/demo/cache").absolute()
NAMES = ("head start", "without")
HOPS = (2, 3)
LIMITS = Limits(max_turns=max(HOPS) + 1, max_response_tokens=256)
ROLLOUTS_A_STEP = 64
MOST_STEPS = 400
"""Steps, as rollouts, after which a training ends that has not learnt it."""
EVALUATED = 40
"""Held-out tasks, each with one rollout, after every second update."""
ENOUGH = 0.5


@dataclass(frozen=True, slots=True)
class Chain:
    """Files that name the next one; the last has the answer."""

    names: tuple[str, ...]
    number: str

    @property
    def files(self) -> dict[str, str]:
        contents = [*self.names[1:], self.number]
        return {name: f"{one}\n" for name, one in zip(self.names, contents, strict=True)}

    def task(self) -> Task:
        question = f"Follow file {self.names[0]}. Which number is at the end?"
        # Texts, as the policy writes them: the template adds an empty reasoning to a message.
        calls = [tool_call("bash", {"command": f"cat {name}"}) for name in self.names]
        return Task(
            task_id=f"{'-'.join(self.names)}-{self.number}",
            agent="math",
            messages=[
                Message(role="system", content=SYSTEM_PROMPT),
                Message(role="user", content=question),
            ],
            data={"answer": self.number, "answer_format": "plain", "files": self.files},
            solution=[*calls, self.number],
        )

    def imitated(self, rng: Random) -> Transcript:
        """An attempt whose commands are right as seldom as the demo's; a wrong one ends it."""
        replies, outputs = list[str](), list[str]()
        for name, content in self.files.items():
            wrong = {f"wc -c {name}": f"{len(content)} {name}", f"ls {name}": name}
            command, output = f"cat {name}", content.strip()
            if rng.random() > RIGHT_SHARE:
                command, output = rng.choice([*wrong.items()])
            replies.append(tool_call("bash", {"command": command}))
            outputs.append(output)
            if output != content.strip():
                break
        prompt = MathAgent(self.task()).prompt()
        return Transcript(prompt, (*replies, outputs[-1]), tuple(outputs))


def chains(hops: int, seed: str) -> Iterator[Chain]:
    rng = Random(seed)
    while True:
        names = rng.sample([f"f{number}" for number in range(10, 100)], hops)
        yield Chain(tuple(names), str(rng.randrange(100, 1000)))


def policy(hops: int, seed: int) -> Path:
    """Returns a policy that imitates attempts at chains of up to so many files."""
    rng, start = Random(f"imitated/{seed}"), WarmStart(seed=seed)
    of_length = [chains(length, f"warm/{seed}") for length in range(1, hops + 1)]
    transcripts = [next(rng.choice(of_length)).imitated(rng) for _ in range(start.demonstrations)]
    return imitation.warm_started(CACHE, transcripts, start.extent, VOCAB_SIZE)


class Watch(TrainerCallback):  # type: ignore[misc]
    """Ends a training once it is good enough, or has had its rollouts."""

    def __init__(self, url: str, client: RolloutClient, heldout: Sequence[Task], most: int) -> None:
        self.curve: list[tuple[float, float]] = []
        """Steps, as rollouts, and held-out success then."""
        self._url = url
        self._client = client
        self._heldout = heldout
        self._most = most
        self._evaluated = 0

    def look(self) -> None:
        ended = frame.rollouts_ended(self._url) - self._evaluated
        found = evaluate(
            self._client, self._heldout, name=f"at-{len(self.curve)}", n=1, limits=LIMITS
        )
        self._evaluated += len(found)
        self.curve.append((ended / ROLLOUTS_A_STEP, success(found)))
        print(f"  step {self.curve[-1][0]:.0f}: success {self.curve[-1][1]:.2f}", flush=True)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: Any,
    ) -> None:
        if state.global_step % 2 == 0:
            self.look()
            steps, reached = self.curve[-1]
            control.should_training_stop = reached >= ENOUGH or steps >= self._most


def trained(hops: int, seed: int, *, head_start: bool, most: int) -> list[tuple[float, float]]:
    """Returns the curve of one training."""
    model, of_seed = policy(hops, seed), chains(hops, f"train/{seed}")
    tasks = [next(of_seed).task() for _ in range(4000)]
    of_heldout = chains(hops, f"heldout/{seed}")
    heldout = [next(of_heldout).task() for _ in range(EVALUATED)]
    spec = SamplerSpec(head_start=head_start, defer_after=None)
    config = TrainConfig(seed=seed, steps=400, limits=LIMITS, dynamic_sampling=spec)
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        directory, options = Path(name), ["--max-model-len", str(CONTEXT)]
        with (
            local.engine(model, log=directory / "engine.log", options=options) as engine,
            local.service([engine.url], log=directory / "service.log") as service,
            RolloutClient(service.url) as client,
        ):
            watch = Watch(service.url, client, heldout, most)
            watch.look()
            trainer = make_trainer(model, service.url, directory, config, tasks=tasks)
            trainer.add_callback(watch)
            trainer.train()
    return watch.curve


def measure_head_start(quick: bool) -> frame.Found:
    rows, curves = list[frame.Row](), dict[str, Any]()
    for hops, seed, name in product(HOPS, range(1 if quick else SEEDS), NAMES):
        most = 8 if quick else MOST_STEPS
        curve = trained(hops, seed, head_start=name == NAMES[0], most=most)
        steps, reached = curve[-1]
        row: frame.Row = {"files": hops, "contender": name, "seed": seed}
        row |= {"success_before": curve[0][1], "success_after": reached, "steps": round(steps, 1)}
        rows.append(row | {"has_learnt": reached >= ENOUGH})
        curves[f"{hops} files, {name}, {seed}"] = [[round(one, 2) for one in at] for at in curve]
        print(rows[-1], flush=True)
    headline = {
        "head_start_success_before": _mean_before(rows, HOPS[-1]),
        "head_start_steps_ratio": _ratio(rows, HOPS[-1]),
        "head_start_steps_ratio_of_two_files": _ratio(rows, HOPS[0]),
    }
    return frame.Found(rows, headline, {"curves": curves})


def _mean_before(rows: Sequence[frame.Row], hops: int) -> float:
    return round(fmean(row["success_before"] for row in rows if row["files"] == hops), 3)


def _ratio(rows: Sequence[frame.Row], hops: int) -> float:
    """Returns the median over the seeds. A training that has not learnt counts the steps it had."""
    mine, others = (
        [row["steps"] for row in rows if (row["files"], row["contender"]) == (hops, name)]
        for name in NAMES
    )
    return round(float(median(one / other for one, other in zip(mine, others, strict=True))), 2)
