"""A service with rollouts of every kind that a person may look at, and an agent that makes them."""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from prorl_service import local
from prorl_service.agents.base import AgentHandler, Prompt, RolloutContext, Verdict
from prorl_service.client import RolloutClient
from prorl_service.errors import (
    AgentError,
    BackendError,
    EvaluatorError,
    ProRLError,
    SandboxError,
    TaskError,
)
from prorl_service.schemas import FinishReason, Group, Message, Stage, Task, ToolCallRecord
from prorl_service.testing import StubEngine, byte_model
from prorl_service.tokens.chat import ChatFormat

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
RUN = "showcase"
HUGE = 5_000_000
SIBLINGS = 8


class Showcase(AgentHandler):
    """Plays a part that `kind` in `data` names; `rewards` are those of the rollouts by index."""

    name: ClassVar[str] = "showcase"
    sandbox_stages: ClassVar[frozenset[Stage]] = frozenset()

    def prompt(self) -> Prompt:
        return Prompt(self.task.messages)

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
        return Verdict(reward, components={"tests": reward}, report=report)

    def _prompt_ids(self, rollout: RolloutContext, number: int) -> list[int]:
        if number == 0:
            return list(rollout.prompt_ids)
        if self.task.data["kind"] == "rewritten" and number == 2:
            return [*rollout.prompt_ids, *rollout.chat.encode("(what was before was left out)")]
        return list(rollout.next_prompt([Message(role="tool", content=f"result {number}")]))

    def _call(self, rollout: RolloutContext, number: int) -> ToolCallRecord:
        outputs = {"hostile": HOSTILE, "huge": "0123456789abcdef\n" * (HUGE // 17)}
        differs = _index(rollout) % 2 if number == 1 else 0
        output = outputs.get(str(self.task.data["kind"]), f"result {number}{'!' * differs}")
        return ToolCallRecord(
            name="bash",
            arguments={"command": f"step {number}"},
            output=output,
            is_error=differs == 1,
            duration_s=0.25,
        )

    def _fails(self, blame: str) -> bool:
        return self.task.data["kind"] == blame


def _index(rollout: RolloutContext) -> int:
    return int(rollout.rollout_id.rpartition(".")[2])


def group(name: str, kind: str, rewards: list[float]) -> Group:
    task = Task(
        task_id=f"task-{kind}",
        agent=Showcase.name,
        messages=[
            Message(role="system", content="You work in a shell."),
            Message(role="user", content=f"Play the part {kind!r}. <b>Not bold.</b>"),
        ],
        data={"kind": kind, "rewards": rewards},
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


@dataclass(frozen=True)
class World:
    url: str
    token: str


@contextmanager
def engine(directory: Path) -> Iterator[StubEngine]:
    """Runs an engine whose answers are sentences, on an event loop of its own."""
    byte_model.write(directory)
    chat = ChatFormat.load(directory)
    rng = random.Random(0)

    def answer(_: list[int]) -> list[int]:
        text = rng.choice(("I look at the files. é", "Now the tests run.", "It is solved: 42."))
        return [*chat.encode(text), chat.end_of_turn_id]

    stub = StubEngine(directory, answer, latency_s=0.005, max_model_len=1 << 16)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(stub.__aenter__(), loop).result(WAIT_S)
        yield stub
    finally:
        asyncio.run_coroutine_threadsafe(stub.__aexit__(), loop).result(WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def world(
    directory: Path, *, rollouts: int = 1000, options: tuple[str, ...] = ()
) -> Iterator[local.LocalProcess]:
    """Runs a service that has ended `rollouts`, over 8 policy versions, and some still running."""
    model, weights = directory / "model", directory / "weights.safetensors"
    model.mkdir()
    weights.write_bytes(b"weights")
    steps = 8
    shelf = ("--journal", str(directory / "journal.sqlite"), "--shelf-sample", "1")
    with (
        engine(model) as stub,
        local.service(
            [stub.url],
            log=directory / "service.log",
            options=["--agent", AGENT, "--sandbox", "process", "--run", RUN, *shelf, *options],
        ) as service,
        RolloutClient(service.url) as client,
    ):
        rng = random.Random(1)
        special = [group(f"special-{kind}", kind, [0.0, 1.0]) for kind in (*FAILURES, "rewritten")]
        special += [group(f"special-{kind}", kind, [1.0]) for kind in ("hostile", "huge")]
        for step in range(steps):
            batch = list(groups(step, rollouts // (steps * SIBLINGS), rng))
            _finish(client, batch + (special if step == steps - 1 else []))
            client.load_weights(str(weights), step + 1)
        client.submit([group("special-slow", "slow", [0.0] * 4)])
        yield service


def _finish(client: RolloutClient, batch: list[Group]) -> None:
    client.submit(batch)
    client.wait([one for group in batch for one in group.rollout_ids()], timeout_s=WAIT_S)
    client.acknowledge([group.group_id for group in batch])
