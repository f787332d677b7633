"""A tiny policy learns from Harbor task directories through TRL.

The demo's problems as directories: the policy writes the answer to a file, and tests/test.sh reads
it. One of four plausible commands is right; the warm start knows all of them, and which earns the
reward is left to training.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from pydantic import JsonValue

from bench import frame
from prorl_service import local
from prorl_service.agents.harbor.agent import HarborAgent
from prorl_service.agents.harbor.directory.reading import TaskDirectory
from prorl_service.client import RolloutClient
from prorl_service.schemas import Task
from recipes.common.training import imitation
from recipes.common.training.imitation import Transcript, tool_call
from recipes.demo.demonstrations import Demonstration, demonstrations
from recipes.demo.evaluate import evaluate, success
from recipes.demo.tasks import LIMITS, Instance, instances
from recipes.demo.train import TrainConfig, train
from recipes.demo.warm_start import VOCAB_SIZE, WarmStart
from tests.agents.harbor.directories import directory

PER_FAMILY, HELDOUT_PER_FAMILY, HELDOUT_ROLLOUTS = 24, 24, 2
STEPS, SEED = 40, 0
CONTEXT = 1024
ANSWER, DONE = "a", "done"
STEP = """\
network_mode = "no-network"

[[steps]]
name = "solve"
"""
TEST = """\
#!/bin/bash
right=0
[ "$(cat {file} 2>/dev/null)" = {answer} ] && right=1
echo "{{\\"reward\\": $right, \\"correct\\": $right}}" > /logs/verifier/reward.json
"""


def write(instance: Instance, parent: Path) -> TaskDirectory:
    """Writes a problem as a task directory, whose files are those of its only step."""
    test = TEST.format(file=ANSWER, answer=shlex.quote(instance.answer))
    of_step = {
        "instruction.md": instance.question,
        "tests/test.sh": test,
        "solution/solve.sh": f"{instance.right.command} > {ANSWER}\n",
        **{f"workdir/{name}": text for name, text in instance.files.items()},
    }
    files = {f"steps/solve/{name}": text for name, text in of_step.items()}
    return directory(parent / instance.name, toml=STEP, test=test, files=files)


def tasks(split: Literal["train", "heldout"], per_family: int, parent: Path) -> Iterator[Task]:
    for instance in instances(split, per_family, seed=SEED):
        yield write(instance, parent / split).task()


def transcript(demonstration: Demonstration) -> Transcript:
    instance, attempt = demonstration.instance, demonstration.attempt
    task = instance.task()
    question = task.model_copy(update={"messages": task.messages[-1:], "data": _ANY})
    command = {"command": f"{attempt.command} > {ANSWER}"}
    return Transcript(
        prompt=HarborAgent(question).prompt(),
        replies=(tool_call("bash", command), DONE),
        answers=("",),
    )


_ANY: dict[str, JsonValue] = {"steps": [{"verifier": {}}]}


def warm_started(cache: Path, seed: int) -> Path:
    config = WarmStart(seed=seed)
    transcripts = [transcript(one) for one in demonstrations(config.demonstrations, seed=seed)]
    return imitation.warm_started(cache, transcripts, config.extent, VOCAB_SIZE)


def measure(quick: bool) -> frame.Found:
    steps = 1 if quick else STEPS
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        output = Path(name)
        model = warm_started(Path("outputs/harbor/cache"), SEED)
        trained = list(tasks("train", PER_FAMILY, output / "tasks"))
        heldout = list(tasks("heldout", HELDOUT_PER_FAMILY, output / "tasks"))
        options = ["--max-model-len", str(CONTEXT)]
        with (
            local.engine(model, log=output / "engine.log", options=options) as engine,
            local.service([engine.url], log=output / "service.log", options=[]) as service,
            RolloutClient(service.url) as client,
        ):
            before = _success(client, heldout, "before")
            config = TrainConfig(seed=SEED, steps=steps)
            log = train(model, service.url, output, config, observe=lambda _: None, tasks=trained)
            after = _success(client, heldout, "after")
    row = {
        "training tasks": len(trained),
        "held-out success before": before,
        "after": after,
        "logprob_diff_max": max(entry["sampling/sampling_logp_difference/max"] for entry in log),
    }
    return frame.Found([row], {"harbor_success_before": before, "harbor_success_after": after})


def _success(client: RolloutClient, heldout: Sequence[Task], name: str) -> float:
    found = evaluate(client, heldout, name=name, n=HELDOUT_ROLLOUTS, limits=LIMITS)
    return success(found)
