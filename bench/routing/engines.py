"""Routers on real engines: three processes of `prorl engine` with a tiny model, behind the pool.

Each gets a share of one core (see `quota`), so that it is an engine of its own and not a third of
the machine; a slow one gets a tenth of the others' share. An engine that is added late is unknown
to the pool until then; one that dies is killed. No sandboxes: tools are sleeps and random tokens.

The length of a turn is not known in advance: `max_tokens` is the same for all, and a turn ends with
one of its stop ids, of which short turns have more. Tokens are seeded: all policies get the same
work.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.routing.headline import Run
from bench.routing.quota import Quotas
from prorl_service import local
from prorl_service.inference.backend import Backend
from prorl_service.inference.connections import Connections
from prorl_service.inference.engines.base import EngineCall
from prorl_service.inference.pool import BackendPool, PoolConfig
from prorl_service.inference.prompt_json import EncodedPrompt
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.inference.routing import Router
from prorl_service.local import LocalProcess
from prorl_service.schemas import BackendSpec, Sampling

ENGINES, SHARE, SLOWNESS = 3, 0.3, 10
PROBES = PoolConfig(probe_interval_s=5.0)
"""Rare probes: every second, they would take half of a slow engine's share."""
EVENT_S = 4.5
"""Seconds until an engine dies or joins."""

SIBLINGS, AT_ONCE = 6, 30
PROMPT_TOKENS, TOOL_TOKENS, TOOL_S = 128, 32, 0.15
MAX_TOKENS, MAX_TURNS = 128, 8
VOCABULARY, NEARLY_UNIFORM = 384, 0.02


@dataclass(frozen=True, slots=True)
class Turn:
    stop_ids: list[int]
    tool_ids: list[int]
    tool_s: float


@dataclass(frozen=True, slots=True)
class Rollout:
    session: str
    prompt_ids: list[int]
    turns: list[Turn]


def workload(seed: int, groups: int, prefix: str) -> list[list[Rollout]]:
    """Makes the groups' rollouts; `prefix` makes their sessions new to the engines."""
    rng = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    def turn() -> Turn:
        stops = max(1, int(VOCABULARY / rng.lognormvariate(3.4, 0.7)))
        stop_ids = rng.sample(range(VOCABULARY), stops)
        return Turn(stop_ids, ids(TOOL_TOKENS), rng.expovariate(1 / TOOL_S))

    def turns() -> list[Turn]:
        return [turn() for _ in range(min(MAX_TURNS, 1 + int(rng.lognormvariate(0.7, 0.7))))]

    prompts = [ids(PROMPT_TOKENS) for _ in range(groups)]
    return [
        [Rollout(f"{prefix}.{group}.{i}", prompt, turns()) for i in range(SIBLINGS)]
        for group, prompt in enumerate(prompts)
    ]


class Fleet:
    """The engines; one that was killed is restarted for the next run."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._model = directory / "tiny"
        build_tiny_model(self._model, hidden_size=128, initializer_range=NEARLY_UNIFORM)
        self._log = directory / "engines.log"
        self._engines = stack.enter_context(ExitStack())
        self._quotas = stack.enter_context(Quotas())
        self._processes = [self._start() for _ in range(ENGINES)]

    def _start(self) -> LocalProcess:
        process = self._engines.enter_context(local.engine(self._model, log=self._log))
        asyncio.run(_warm_up(process.url))
        return process

    def prepare(self, scenario: str) -> list[LocalProcess]:
        """Returns the engines: the first is the slow one, the last the one that dies or joins."""
        for i, process in enumerate(self._processes):
            if process.process.poll() is not None:
                self._processes[i] = self._start()
        for i, process in enumerate(self._processes):
            is_slow = scenario == "one slow" and i == 0
            self._quotas.set(process, SHARE / SLOWNESS if is_slow else SHARE)
        return self._processes


async def _warm_up(url: str) -> None:
    """Makes calls ahead, since the first steps of a process take much longer."""
    async with aclosing(Connections()) as connections:
        backend = Backend(url, connections)
        calls = (
            backend.generate(
                EngineCall(
                    EncodedPrompt([i] * PROMPT_TOKENS), Sampling(), MAX_TOKENS, i, f"warm-up {i}"
                )
            )
            for i in range(AT_ONCE // ENGINES)
        )
        await asyncio.gather(*calls)


@contextmanager
def fleet() -> Iterator[Fleet]:
    with TemporaryDirectory() as directory, ExitStack() as stack:
        yield Fleet(Path(directory), stack)


async def run(
    router: Router, processes: Sequence[LocalProcess], scenario: str, groups: list[list[Rollout]]
) -> Run:
    *_, last = processes
    is_late = scenario == "one added late"
    with TemporaryDirectory() as spool:
        async with BackendPool(Path(spool), PROBES, router=router) as pool:
            for process in processes[:-1] if is_late else processes:
                await pool.add(BackendSpec(url=process.url))
            work = asyncio.create_task(_run_groups(pool, groups))
            await asyncio.wait({work}, timeout=EVENT_S)
            if is_late:
                await pool.add(BackendSpec(url=last.url))
            elif scenario == "one dying":
                last.kill()
            return await work


async def _run_groups(pool: BackendPool, groups: list[list[Rollout]]) -> Run:
    """Runs the groups; each begins when there is room for all of it."""
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(AT_ONCE)
    moves = 0

    async def one(rollout: Rollout) -> None:
        nonlocal moves
        changed = await _roll_out(pool, rollout)
        moves += changed
        room.release()

    async def group(rollouts: list[Rollout]) -> float:
        began_at = loop.time()
        await asyncio.gather(*map(one, rollouts))
        return loop.time() - began_at

    async with asyncio.TaskGroup() as tasks:
        running = []
        for rollouts in groups:
            for _ in rollouts:
                await room.acquire()
            running.append(tasks.create_task(group(rollouts)))
    return Run([task.result() for task in running], moves)


async def _roll_out(pool: BackendPool, rollout: Rollout) -> int:
    """Runs a rollout; returns how often it changed its engine."""
    ids, backends = list(rollout.prompt_ids), []
    with pool.session(rollout.session) as session:
        for number, turn in enumerate(rollout.turns):
            generation = await session.generate(
                ids,
                sampling=Sampling(temperature=1.0),
                max_tokens=MAX_TOKENS,
                seed=number,
                stop_token_ids=turn.stop_ids,
            )
            backends.append(generation.backend)
            ids += [*generation.token_ids, *turn.tool_ids]
            await asyncio.sleep(turn.tool_s)
    return sum(before != after for before, after in pairwise(backends))
