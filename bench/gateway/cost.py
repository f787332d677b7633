"""CPU time of the service's own process for each model call: our loop, and a harness in its place.

Both do the work of `bench.load`: ten commands and a closing turn, against its stub engine, 64
rollouts at once, in turns, so that both see the same machine.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from uuid import uuid4

from bench.load.contenders import engine as stub_engine
from bench.load.ours import process_cpu_s
from bench.load.workload import MODEL_CALLS, SYSTEM, TASK
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.harness import with_program
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import Group, Limits, Message, Rollout, Task
from recipes.demo.programs import OPENAI_AGENT

AT_ONCE = 64
ROUNDS = 3
LATENCY_MS = 50
VOCAB_SIZE = 1024
WAIT_S = 900.0
LOOP, HARNESS = "our loop", "40 lines on the openai SDK"


@dataclass(slots=True)
class Contender:
    task: Task
    cpu_ms: list[float] = field(default_factory=list)
    calls: int = 0
    failures: int = 0


def measure() -> list[dict[str, object]]:
    messages = [Message(role="system", content=SYSTEM), Message(role="user", content=TASK)]
    own = Task(task_id="cost", agent="math", messages=messages, data={"answer": "1"})
    program = with_program(own, OPENAI_AGENT.read_text())
    contenders = {LOOP: Contender(own), HARNESS: Contender(program)}
    with TemporaryDirectory() as directory:
        model = Path(directory, "model")
        build_tiny_model(model, vocab_size=VOCAB_SIZE)
        log = Path(directory, "service.log")
        options = ["--sandbox", "bubblewrap", "--run-workers", str(AT_ONCE)]
        with (
            stub_engine(model, LATENCY_MS) as engine,
            local.service([engine], log=log, options=options) as service,
        ):
            _take_turns(service.url, service.pid, contenders)
    return [_row(name, one) for name, one in contenders.items()]


def _take_turns(url: str, pid: int, contenders: dict[str, Contender]) -> None:
    with RolloutClient(url) as client:
        for one in contenders.values():
            _run(client, one.task, 2)
        for _ in range(ROUNDS):
            for one in contenders.values():
                cpu_s = process_cpu_s(pid)
                rollouts = _run(client, one.task, AT_ONCE)
                time.sleep(1.0)
                calls = sum(_calls(rollout) for rollout in rollouts)
                one.cpu_ms.append((process_cpu_s(pid) - cpu_s) * 1000 / max(1, calls))
                one.calls += calls
                one.failures += sum(_calls(rollout) != MODEL_CALLS for rollout in rollouts)


def _run(client: RolloutClient, task: Task, n: int) -> list[Rollout]:
    limits = Limits(run_timeout_s=WAIT_S)
    group = Group(group_id=uuid4().hex, task=task, n=n, limits=limits)
    client.submit([group])
    return list(client.stream(group.rollout_ids(), timeout_s=WAIT_S))


def _calls(rollout: Rollout) -> int:
    return 0 if rollout.trajectory is None else len(rollout.trajectory.turns)


def _row(name: str, one: Contender) -> dict[str, object]:
    return {
        "contender": name,
        "rollouts_at_once": AT_ONCE,
        "cpu_ms_per_call": median(one.cpu_ms),
        "calls": one.calls,
        "failures": one.failures,
    }


def expected_calls() -> int:
    """Returns the calls of a contender, if none is sampled twice and none is missing."""
    return ROUNDS * AT_ONCE * MODEL_CALLS
