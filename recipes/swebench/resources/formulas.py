"""Formulas: what a training run on SWE data needs of the service's hosts. Pure; docs/swe.md.

The results are estimates; the service's metrics have what a run really takes.
"""

import math
from dataclasses import dataclass

from prorl_service.agents.swe.agent import LIMITS
from prorl_service.errors import InvalidRequest
from recipes.common.training.memory import ModelShape
from recipes.swebench.data.prefetch import IMAGE_MB
from recipes.swebench.resources.costs import Costs

TOKEN_BYTES = 12 + 4 + 7
"""Bytes of a token in the service: id, logprob, version
(`prorl_service.tokens.ledger.Chain`); of the newest prompt, id and at most JSON
(`prorl_service.inference.prompt_json.Prompt`)."""
AHEAD = 16
"""Sandboxes of a service before RUN: `--warm-sandboxes` and `--ready-rollouts`."""


@dataclass(frozen=True, slots=True)
class Run:
    """One step of a training run, and what it runs on."""

    model: ModelShape
    batch: int = 32
    n: int = 8
    oversubscription: float = 1.0
    """Rollouts begun for each that the step takes; the step ends when it has those it takes."""
    turns: int = 30
    """Maximum number of turns."""
    mean_turns: float = 30.0
    """Mean number of turns; they are taken to be spread evenly around it, up to the limit."""
    model_s: float = 12.0
    """Seconds of the engine for a turn."""
    context: int = 32768
    nodes: int = 1
    """Hosts of the service."""
    slots: int | None = None
    """Rollouts that a node runs at once (`--run-workers`); None: all there are."""
    test_runs: float = 1.0
    """Number of times that a rollout runs the tests itself."""
    test_mb: float = LIMITS.memory_mb
    """Maximum memory of a test run."""
    images: int = 293
    image_mb: float = IMAGE_MB
    gpus: int = 32
    gpu_gb: float = 80.0
    tensor_parallel: int = 2
    gpu_share: float = 0.8
    """Share of a GPU's memory that an engine takes."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Needs of all nodes together, unless stated otherwise."""

    rollouts: int
    sandboxes: int
    cores: float
    memory_gb: float
    service_mb: float
    """Memory of one service's process."""
    disk_gb: float
    """Disk of the image cache, once if it is shared by the nodes."""
    step_s: float
    """Duration of the rollouts of a step."""
    slot_use: float
    """Share of the slots' time in which a rollout runs."""
    engine_calls: float
    """Concurrent model calls, on average."""
    engine_room: int
    """Sequences of the full context that fit the engines' caches."""


def needs(run: Run, costs: Costs) -> Needs:
    rollouts = math.ceil(run.batch * run.n * run.oversubscription)
    slots = rollouts if run.slots is None else run.slots * run.nodes
    running = min(rollouts, slots)
    turn_s = run.model_s + costs.turn_overhead_s + run.test_runs * costs.grading_s / run.mean_turns
    rollout_s = run.mean_turns * turn_s
    cpu_s = run.mean_turns * costs.turn_cpu_ms / 1000 + (run.test_runs + 1) * costs.grading_s
    evaluating = running * costs.grading_s / rollout_s
    testing = running * (run.test_runs + 1) * costs.grading_s / rollout_s
    sandboxes = running + math.ceil(evaluating) + AHEAD * run.nodes
    service_mb = costs.service_mb + running / run.nodes * (
        costs.service_mb_per_rollout + TOKEN_BYTES * run.context / 1e6
    )
    memory_mb = (
        run.nodes * service_mb
        + math.ceil(running / run.n) * costs.image_mb
        + sandboxes * costs.sandbox_mb
        + math.ceil(testing) * run.test_mb
    )
    step_turns = max(_longest(run), run.batch * run.n * run.mean_turns / slots)
    busy_turns = min(rollouts * _mean_up_to(run, step_turns), slots * step_turns)
    return Needs(
        rollouts=rollouts,
        sandboxes=sandboxes,
        cores=running * cpu_s / rollout_s,
        memory_gb=memory_mb / 1e3,
        service_mb=service_mb,
        disk_gb=run.images * run.image_mb / 1e3,
        step_s=step_turns * turn_s + costs.grading_s,
        slot_use=busy_turns / (slots * step_turns),
        engine_calls=running * run.model_s / turn_s,
        engine_room=_engine_room(run),
    )


def _shortest(run: Run) -> float:
    return 2 * run.mean_turns - run.turns


def _longest(run: Run) -> float:
    """Turns of the last rollout that the step takes."""
    return _shortest(run) + (run.turns - _shortest(run)) / run.oversubscription


def _mean_up_to(run: Run, turns: float) -> float:
    """Mean number of turns of a rollout that is stopped after `turns`."""
    low, high = _shortest(run), float(run.turns)
    if turns >= high:
        return run.mean_turns
    return ((turns**2 - low**2) / 2 + turns * (high - turns)) / (high - low)


def _engine_room(run: Run) -> int:
    engines = run.gpus // run.tensor_parallel
    room_gb = run.gpus * run.gpu_gb * run.gpu_share - engines * run.model.weights_gb
    return max(0, int(room_gb * 1e6 / (run.context * run.model.token_kb)))


def check(run: Run) -> None:
    """Raises `InvalidRequest` for figures that contradict each other."""
    if not run.turns / 2 <= run.mean_turns <= run.turns:
        raise InvalidRequest.of_field("mean-turns", "must be from half of --turns up to --turns")
    if run.gpus % run.tensor_parallel:
        raise InvalidRequest.of_field("gpus", "must be a multiple of --tensor-parallel")
