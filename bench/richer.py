"""What a rollout can be: branches, and head starts on a task that is hardly ever solved.

*branch*: rollouts of random commands, and a branch at every turn of each; the time is that from
submission to the first call of the model. *head_start*: the demo's agent has to follow two or three
files, each of which names the next, to the number in the last; a policy that imitates mostly wrong
commands finds it in two of a hundred rollouts, or in three of a thousand. Both contenders train on
informative groups (dynamic sampling); a step is as many rollouts as a step without that costs.
*dialogue*: a policy that mostly acts against the rules learns to serve a user, whom code plays, on
records that code checks. *wire*: bytes of a stream of eight siblings that begin with the same
turns, plain and as clients get them. Takes an hour.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bench import frame
from prorl_service import local
from prorl_service.agents.math import MathAgent
from prorl_service.agents.registry import AgentRegistry
from prorl_service.client import AsyncRolloutClient, RolloutClient
from prorl_service.net.credentials import authorization
from prorl_service.schemas import Group, Limits, Message, Rollout, Start, Task, Trajectory
from prorl_service.schemas.arrays import PACKED_MEDIA_TYPE
from prorl_service.schemas.sampling import SamplerSpec
from prorl_service.server.settings import ServiceSettings
from prorl_service.testing.replies import Reply, call
from prorl_service.testing.scripted_engine import ScriptedEngine, scripted_engine
from prorl_service.testing.trial import rollouts, trial_service
from recipes.common.training import imitation
from recipes.common.training.imitation import Transcript, tool_call
from recipes.demo.demonstrations import RIGHT_SHARE
from recipes.demo.evaluate import evaluate, success
from recipes.demo.tasks import CONTEXT, SYSTEM_PROMPT
from recipes.demo.train import TrainConfig, make_trainer
from recipes.demo.warm_start import VOCAB_SIZE, WarmStart
from recipes.dialogue.demonstrations import warm_started as dialogue_policy
from recipes.dialogue.tasks import LIMITS as DIALOGUE_LIMITS
from recipes.dialogue.tasks import instances as dialogues
from recipes.dialogue.user import MODEL, customer

SEEDS = 3
ANSWER = "\\boxed{42}"

# --- branches -------------------------------------------------------------------------------------


def measure_branches(quick: bool) -> frame.Found:
    found = asyncio.run(_branches(2 if quick else 20))
    exact, starts_s = [one for one, _ in found], [taken_s for _, taken_s in found]
    headline = {
        "branch_exact": sum(exact) / len(exact),
        "branches": len(found),
        "branch_start_ms_p50": round(1000 * median(starts_s), 1),
    }
    return frame.Found([headline], headline)


async def _branches(count: int) -> list[tuple[bool, float]]:
    """Returns, for each branch, whether prompt and files were those of then, and the seconds to its
    first call."""
    found = []
    async with (
        scripted_engine([]) as engine,
        trial_service(AgentRegistry(), [engine.spec], ServiceSettings()) as service,
    ):

        async def played(name: str, replies: Sequence[Reply], start: Start | None) -> Rollout:
            engine.give(name, [replies])
            question = Message(role="user", content="What is 6 * 7?")
            task = Task(task_id="t", agent="math", messages=[question], data={"answer": "42"})
            group = Group(group_id=name, task=task, start=start)
            await service.submit([group])
            [ended] = [one async for one in rollouts(service, group)]
            return ended

        for number in range(count):
            rng = Random(number)
            turns = rng.randrange(2, 9)
            commands = [f"echo {rng.random()} >> {rng.choice('abc')}; cat *" for _ in range(turns)]
            calls = [call("bash", command=one) for one in commands]
            first = await played(f"g{number}", [*calls, ANSWER], None)
            for turn in range(1, turns + 1):
                looks: list[Reply] = [call("bash", command="cat *"), ANSWER]
                start = Start(rollout_id=first.rollout_id, turns=turn)
                branch = await played(f"g{number}-{turn}", looks, start)
                found.append((_is_exact(engine, first, branch, turn), _start_s(branch, turn)))
    return found


def _is_exact(engine: ScriptedEngine, first: Rollout, branch: Rollout, turn: int) -> bool:
    then, now = _trajectory(first), _trajectory(branch)
    segment = then.segments[0]
    seen = segment.prompt_ids + segment.response_ids[: then.turns[turn].start]
    prompt = engine.prompts[branch.rollout_id][0]
    wanted = then.turns[turn - 1].tool_calls[0].output
    return prompt == seen and now.turns[turn].tool_calls[0].output == wanted


def _start_s(branch: Rollout, turn: int) -> float:
    began_at = _trajectory(branch).turns[turn].started_at
    assert began_at is not None
    return began_at - branch.created_at


def _trajectory(rollout: Rollout) -> Trajectory:
    assert rollout.trajectory is not None, rollout.error
    return rollout.trajectory


# --- head starts ----------------------------------------------------------------------------------

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
    cache = Path("outputs/demo/cache").absolute()
    return imitation.warm_started(cache, transcripts, start.extent, VOCAB_SIZE)


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


# --- dialogues, the wire, models behind APIs ------------------------------------------------------

DIALOGUE_STEPS = 150
DIALOGUE_RATE = 3e-4
"""Learning rate. With the demo's, which is three times as high, the policy ends by refusing all."""
HELDOUT_DIALOGUES = 120


def measure_dialogue(quick: bool) -> frame.Found:
    steps = 2 if quick else DIALOGUE_STEPS
    model = dialogue_policy(Path("outputs/demo/cache").absolute())
    given = [one.task() for one in dialogues("train", min(steps * 8, 720), seed=0)]
    heldout = [one.task() for one in dialogues("heldout", HELDOUT_DIALOGUES, seed=0)]
    config = TrainConfig(steps=steps, limits=DIALOGUE_LIMITS, learning_rate=DIALOGUE_RATE)
    with TemporaryDirectory(prefix="prorl-bench-") as name, customer().in_thread() as user:
        directory, options = Path(name), ["--max-model-len", str(CONTEXT)]
        of_user = ["--user-url", f"{user.url}/v1", "--user-model", MODEL]
        with (
            local.engine(model, log=directory / "engine.log", options=options) as engine,
            local.service([engine.url], log=directory / "service.log", options=of_user) as service,
            RolloutClient(service.url) as client,
        ):

            def heldout_success(when: str) -> float:
                found = evaluate(client, heldout, name=when, n=1, limits=DIALOGUE_LIMITS)
                return round(fmean(one.reward or 0.0 for one in found), 3)

            before = heldout_success("before")
            trainer = make_trainer(model, service.url, directory, config, tasks=given)
            trainer.train()
            trainer.rollout_func.push_weights()
            after = heldout_success("after")
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    gap = max(entry["sampling/sampling_logp_difference/max"] for entry in history)
    headline = {
        "dialogue_success_before": before,
        "dialogue_success_after": after,
        "dialogue_steps": steps,
        "dialogue_logprob_diff_max": gap,
    }
    curve = [round(entry["reward"], 3) for entry in history]
    return frame.Found([headline], headline, {"dialogue_rewards": curve})


def measure_wire(quick: bool) -> frame.Found:
    plain, sent = asyncio.run(_streamed(turns=10 if quick else 40))
    headline = {
        "plain_bytes": plain,
        "sent_bytes": sent,
        "prefix_bytes_saved_share": round(1 - sent / plain, 3),
    }
    return frame.Found([headline], headline)


async def _streamed(turns: int) -> tuple[int, int]:
    """Returns the bytes of a group's stream, plain and compressed."""
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        async with scripted_engine([]) as engine:
            with local.service([], log=Path(name) / "log") as service:
                return await _bytes_of_group(engine, service.url, turns)


async def _bytes_of_group(engine: ScriptedEngine, url: str, turns: int) -> tuple[int, int]:
    question = Message(role="user", content="What is 6 * 7?")
    task = Task(task_id="t", agent="math", messages=[question], data={"answer": "42"})
    calls = [call("bash", command=f"seq {number} {number + 200}") for number in range(turns)]
    limits = Limits(max_turns=turns + 2)
    groups = [Group(group_id="first", task=task, limits=limits)]
    start = Start(rollout_id="first.0", turns=turns)
    groups.append(Group(group_id="siblings", task=task, n=8, start=start, limits=limits))
    engine.give("first", [[*calls, ANSWER]])
    engine.give("siblings", [[ANSWER]])
    sizes = []
    async with AsyncRolloutClient(url) as client:
        spec = engine.spec
        await client.add_backend(spec.url, spec.tokenizer, api_key=spec.api_key)
        for group in groups:
            await client.submit([group])
            await client.wait(group.rollout_ids(), 600)
    body = {"rollout_ids": groups[1].rollout_ids()}
    headers = {**authorization(url), "Accept": PACKED_MEDIA_TYPE}
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
        for encoding in ("identity", "zstd"):
            accepts = {"Accept-Encoding": encoding}
            stream = http.stream("POST", "/v1/rollouts/stream", json=body, headers=accepts)
            async with stream as response:
                await response.aread()
                sizes.append(response.num_bytes_downloaded)
    return sizes[0], sizes[1]


if __name__ == "__main__":
    frame.run(
        "richer",
        {
            "branch": measure_branches,
            "head_start": measure_head_start,
            "dialogue": measure_dialogue,
            "wire": measure_wire,
        },
    )
