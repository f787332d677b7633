"""A service with rollouts of every kind that a person may look at, and an agent that makes them."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from prorl_service import local
from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.client import RolloutClient
from prorl_service.errors import (
    AgentError,
    BackendError,
    EvaluatorError,
    ProRLError,
    SandboxError,
    TaskError,
)
from prorl_service.schemas import FinishReason, Group, Message, Task, ToolCallRecord
from prorl_service.schemas.history import TrainerStep
from prorl_service.testing import StubEngine, byte_model, safetensors
from prorl_service.tokens.chat import ChatFormat
from tests.agents.bare_agent import BareAgent
from tests.trainers import trainer

WAIT_S = 120
AGENT = "tests.page.showcase:Showcase"
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"></script><script>alert(1)</script>\n"
    "\x1b[31mred\x1b[0m \x1b[1;32mbold green\x1b[0m \x1b]8;;http://elsewhere.example/\x07link\x1b]8;;\x07\n"
    "right to left: \u202eevil\u202c, no width: a\u200bb, bell: \x07, back: abc\x08\x08\x08\n"
    "http://elsewhere.example/?token=1 &lt;b&gt;not bold&lt;/b&gt;\n"
)
FAILURES: dict[str, type[ProRLError]] = {
    "task": TaskError,
    "agent": AgentError,
    "sandbox": SandboxError,
    "backend": BackendError,
    "evaluator": EvaluatorError,
    "service": ProRLError,
}
STEPS = (
    ("ls", "calc.py  test_calc.py\n"),
    ("python -m pytest -q", "....                                   [100%]\n4 passed in 0.02s\n"),
    (
        "git diff",
        "\x1b[1mdiff --git a/calc.py b/calc.py\x1b[m\n def total(prices):\n"
        "\x1b[31m-    return sum(prices[1:])\x1b[m\n\x1b[32m+    return sum(prices)\x1b[m\n",
    ),
)
"""Commands and what they print, turn by turn."""

FAILING = (
    "F...                                   [100%]\nE  assert 3 == 6\n1 failed, 3 passed in 0.03s\n"
)
ANSWERS = (
    "I look at the files. é",
    "<think>\nThe first price is left out: a slice is wrong.\n</think>\n\nNow the tests run.",
    "The total is right now: it is solved.",
)
TASKS = {"plain": "The tests of calc.py fail. Make them pass. <b>Change no test.</b>"}
TOOL_S = 0.02
RUN = "showcase"
HUGE = 5_000_000
SIBLINGS = 8


class Showcase(BareAgent):
    """Plays a part that `kind` in `data` names; `rewards` are those of the rollouts by index."""

    name: ClassVar[str] = "showcase"

    async def init(self, rollout: RolloutContext) -> None:
        if self._fails("task"):
            raise TaskError("the task names a file that is not there", hint="prepare it again")

    async def run(self, rollout: RolloutContext) -> FinishReason:
        if self.task.data["kind"] == "slow":
            await asyncio.sleep(3600)
        for number in range(3):
            prompt = self._prompt_ids(rollout, number)
            turn = await rollout.sample(prompt)
            turn.tool_calls.append(self._call(rollout, number))
            await asyncio.sleep(turn.tool_calls[0].duration_s)
        for blame in ("agent", "sandbox", "backend", "service"):
            if self._fails(blame):
                raise FAILURES[blame](f"{blame} gave up after 3 turns", hint="look at its log")
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        if self._fails("evaluator"):
            raise EvaluatorError("the tests did not end", hint="raise the limit of EVAL")
        rewards: Any = self.task.data["rewards"]
        reward = float(rewards[_index(rollout)])
        report: dict[str, Any] = {
            "tests": {"passed": int(4 * reward), "failed": 4 - int(4 * reward)}
        }
        of_turns = {1: 0.25} if self.task.data["kind"] == "rewritten" else {}
        return Verdict(reward, {"tests": reward}, report, of_turns)

    def _prompt_ids(self, rollout: RolloutContext, number: int) -> list[int]:
        if number == 0:
            return list(rollout.prompt_ids)
        if self.task.data["kind"] == "rewritten" and number == 2:
            left_out = rollout.attempt.chat.encode("(what was before was left out)")
            return [*rollout.prompt_ids, *left_out]
        return list(rollout.next_prompt([Message(role="tool", content=STEPS[number - 1][1])]))

    def _call(self, rollout: RolloutContext, number: int) -> ToolCallRecord:
        command, output = STEPS[number]
        tool_s: Any = self.task.data["tool_s"]
        is_error = number == 1 and _index(rollout) % 2 == 1
        outputs = {"hostile": HOSTILE, "huge": "0123456789abcdef\n" * (HUGE // 17)}
        return ToolCallRecord(
            name="bash",
            arguments={"command": command},
            output=outputs.get(str(self.task.data["kind"]), FAILING if is_error else output),
            is_error=is_error,
            duration_s=tool_s * (1 + _index(rollout) / 4),
        )

    def _fails(self, blame: str) -> bool:
        return self.task.data["kind"] == blame


def _index(rollout: RolloutContext) -> int:
    return int(rollout.rollout_id.rpartition(".")[2])


def group(name: str, kind: str, rewards: list[float], tool_s: float = TOOL_S) -> Group:
    """Makes a group whose tools take at least `tool_s`, those of later siblings longer."""
    task = Task(
        task_id=f"task-{kind}",
        agent=Showcase.name,
        messages=[
            Message(role="system", content="You work in a shell."),
            Message(role="user", content=TASKS.get(kind, f"Play the part {kind!r}.")),
        ],
        data={"kind": kind, "rewards": rewards, "tool_s": tool_s},
    )
    return Group(group_id=name, task=task, n=len(rewards))


def groups(step: int, count: int, rng: random.Random) -> Iterator[Group]:
    """Yields the groups of a training step: some whose rewards are all equal, most informative."""
    for number in range(count):
        level = rng.choice((0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
        rewards = [float(rng.random() < level) for _ in range(SIBLINGS)]
        if number % 5 == 0:
            rewards = [rng.choice((0.0, 0.25, 0.5, 1.0)) for _ in range(SIBLINGS)]
        yield group(f"step{step}-group{number}", "plain", rewards)


METRICS = {
    "loss": (0.2, 0.05),
    "reward": (0.3, 0.7),
    "kl": (0.001, 0.02),
    "entropy": (1.6, 0.9),
    "grad_norm": (0.8, 0.4),
    "sampling/sampling_logp_difference/mean": (0.004, 0.006),
    "learning_rate": (1e-6, 1e-7),
    "step_time": (40.0, 42.0),
}
"""A trainer's metrics of its first step and its last."""


def reported(step: int, steps: int, rng: random.Random) -> TrainerStep:
    done = step / (steps - 1)
    values = {
        name: (first + (last - first) * done) * rng.uniform(0.9, 1.1)
        for name, (first, last) in METRICS.items()
    }
    return TrainerStep(step=step + 1, metrics=values)


@contextmanager
def engine(directory: Path) -> Iterator[StubEngine]:
    """Runs an engine whose answers are sentences, on an event loop of its own."""
    byte_model.write(directory)
    chat = ChatFormat.load(directory)
    rng = random.Random(0)

    def answer(_: list[int]) -> list[int]:
        text = rng.choice(ANSWERS)
        return [*chat.encode(text), chat.end_of_turn_id]

    stub = StubEngine(directory, answer, latency_s=0.005, max_model_len=1 << 16)
    stub.logprob = lambda _: -rng.expovariate(1.5)
    with stub.in_thread():
        yield stub


@contextmanager
def world(
    directory: Path, *, rollouts: int = 1000, run: str = RUN, options: tuple[str, ...] = ()
) -> Iterator[local.LocalProcess]:
    """Runs a service that has ended `rollouts`, over 8 policy versions, and some still running."""
    model, weights = directory / "model", directory / "weights.safetensors"
    model.mkdir(exist_ok=True)
    weights.write_bytes(safetensors(b"weights"))
    steps = 8
    shelf = ("--journal", str(directory / f"{run}.sqlite"), "--shelf-sample", "1")
    with (
        engine(model) as stub,
        local.service(
            [stub.url],
            log=directory / "service.log",
            options=["--agent", AGENT, "--sandbox", "process", "--run", run, *shelf, *options],
        ) as service,
        trainer(service.url) as client,
    ):
        rng = random.Random(1)
        special = [group(f"special-{kind}", kind, [0.0, 1.0]) for kind in (*FAILURES, "rewritten")]
        special += [group(f"special-{kind}", kind, [1.0]) for kind in ("hostile", "huge")]
        for step in range(steps):
            batch = list(groups(step, rollouts // (steps * SIBLINGS), rng))
            _finish(client, batch + (special if step == steps - 1 else []))
            client.report_step(reported(step, steps, rng))
            client.load_weights(str(weights))
        client.submit([group("special-slow", "slow", [0.0] * 4)])
        yield service


def _finish(client: RolloutClient, batch: list[Group]) -> None:
    client.submit(batch)
    client.wait([one for group in batch for one in group.rollout_ids()], timeout_s=WAIT_S)
    client.acknowledge([group.group_id for group in batch])
