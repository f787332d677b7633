"""The service itself: `prorl serve` in a process of its own, driven by its client over HTTP."""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from uuid import uuid4

from bench import frame
from bench.load.agent import LoadAgent
from bench.load.meter import Measured, machine_cpu_s, own_cpu_s, peak_rss_mb, report
from bench.load.workload import MODEL_CALLS, SYSTEM, TASK, TOOL_TURNS, is_output
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import Group, Limits, Message, Rollout, Task

GROUP_SIZE = 8
WAIT_S = 900.0
SETTLE_S = 0.5
"""Seconds for the last sandboxes to end, and for others to start in their place."""
AT_ONCE, BATCHES, VOCAB_SIZE = 64, 4, 1024
MESSAGES = [Message(role="system", content=SYSTEM), Message(role="user", content=TASK)]
WORK = Task(task_id="load", agent=LoadAgent.name, messages=MESSAGES)


def measure(
    sandbox: str, image: str | None, log: Path, engine: str, n: int, batches: int
) -> Measured:
    options = [*agent_options(LoadAgent), "--sandbox", sandbox, "--run-workers", str(n)]
    measured, task = Measured(), WORK.model_copy(update={"image": image})
    with local.service([engine], log=log, options=options) as service:
        with RolloutClient(service.url) as client:
            run(client, task, 1)
            report(engine)
            own_s, machine_s = cpu_s(service.pid), machine_cpu_s() - own_cpu_s()
            for _ in range(batches):
                started = time.perf_counter()
                rollouts = run(client, task, n)
                measured.walls_s.append(time.perf_counter() - started)
                measured.failures += sum(not is_complete(rollout) for rollout in rollouts)
            time.sleep(SETTLE_S)
        measured.own_cpu_s = cpu_s(service.pid) - own_s
        measured.machine_cpu_s = machine_cpu_s() - own_cpu_s() - machine_s
        measured.peak_rss_mb = peak_rss_mb(service.pid)
    return measured


def stub_engine(model: Path, latency_ms: int) -> AbstractContextManager[str]:
    return frame.engine_program("bench.load.engine", str(model), str(latency_ms))


def agent_options(agent: type[LoadAgent]) -> tuple[str, str]:
    return "--agent", f"{agent.__module__}:{agent.__qualname__}"


def turn_ms(
    directory: Path,
    *options: str,
    latency_ms: int,
    agent: type[LoadAgent] = LoadAgent,
    beside: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> float:
    """Runs a service with a journal and these options under 64 rollouts. Returns the CPU
    milliseconds that its process takes for a turn. `beside`: context for its URL meanwhile."""
    directory.mkdir()
    build_tiny_model(directory / "model", vocab_size=VOCAB_SIZE)
    given = [*agent_options(agent), "--sandbox", "process", "--run-workers", str(AT_ONCE)]
    given += ["--journal", str(directory / "journal.sqlite"), *options]
    with (
        stub_engine(directory / "model", latency_ms) as engine,
        local.service([engine], log=directory / "service.log", options=given) as service,
        RolloutClient(service.url) as client,
    ):
        run(client, WORK, AT_ONCE)
        with beside(service.url):
            before = cpu_s(service.pid)
            for _ in range(BATCHES):
                assert all(map(is_complete, run(client, WORK, AT_ONCE)))
            used_s = cpu_s(service.pid) - before
    return round(1e3 * used_s / (AT_ONCE * BATCHES * MODEL_CALLS), 3)


def run(client: RolloutClient, task: Task, n: int) -> list[Rollout]:
    """Runs `n` rollouts; returns them in the order in which they ended."""
    limits = Limits(run_timeout_s=WAIT_S)
    sizes = [min(GROUP_SIZE, n - start) for start in range(0, n, GROUP_SIZE)]
    groups = [Group(group_id=uuid4().hex, task=task, n=one, limits=limits) for one in sizes]
    client.submit(groups)
    ids = [rollout_id for group in groups for rollout_id in group.rollout_ids()]
    return list(client.stream(ids, timeout_s=WAIT_S))


def is_complete(rollout: Rollout) -> bool:
    if rollout.trajectory is None or rollout.error is not None:
        return False
    turns = rollout.trajectory.turns
    calls = [call for turn in turns for call in turn.tool_calls]
    outputs = [call for call in calls if is_output(f"{call.output}\n") and not call.is_error]
    return len(turns) == MODEL_CALLS and len(outputs) == TOOL_TURNS


def cpu_s(pid: int) -> float:
    """Returns CPU seconds of all threads of a process, without those of its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
