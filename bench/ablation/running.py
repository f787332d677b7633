"""One run of a row: a service of its own, over the modelled engines, and the draws of a trainer."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench import frame
from bench.ablation import workload
from bench.ablation.agent import AblationAgent
from bench.ablation.rows import Row
from bench.ablation.workload import Size
from bench.quiet import Quiet, Watch
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.client.sampling import SamplerClient
from prorl_service.schemas import Rollout
from prorl_service.schemas.sampling import DrawSpec, Filter, SamplerSpec

ENGINES = 4
FILTER = Filter(min_mean=workload.LEAST_MEAN, max_mean=workload.MOST_MEAN, lowest=0.0, highest=1.0)


@dataclass(frozen=True, slots=True)
class Run:
    """Figures of the draws after the first."""

    groups_per_s: float
    """Informative groups per second, as a trainer got them."""
    wasted: float
    """Share of all turns in groups that were cancelled, begun again or thrown away."""
    action_ms: list[float]
    """Milliseconds of each bash call of the groups given."""
    quiet: Quiet


@contextmanager
def fleet(model: Path) -> Iterator[list[str]]:
    """Starts the modelled engines, which serve all runs."""
    with ExitStack() as stack:
        engines = [
            frame.engine_program("bench.ablation.engine", str(model)) for _ in range(ENGINES)
        ]
        yield [stack.enter_context(one) for one in engines]


def run(row: Row, seed: int, size: Size, engines: list[str], tmux_s: float, log: Path) -> Run:
    """`tmux_s`: time that a bash call takes through tmux."""
    for number, url in enumerate(engines):
        own = {"seed": seed, "pace": size.pace, "slowness": 1.0 if number else row.slowness}
        httpx.post(f"{url}/reset", json=own, trust_env=False).raise_for_status()
    with (
        local.running(_command(row, size, engines), log=log) as service,
        RolloutClient(service.url) as client,
    ):
        return _draw_all(row, seed, size, engines, tmux_s if row.has_tmux else 0.0, client)


def _command(row: Row, size: Size, engines: Sequence[str]) -> list[str]:
    """Returns the command of the service. In turn, nothing is done ahead of RUN."""
    is_serial = "pipeline=serial" in row.switches
    return [
        *(sys.executable, "-m", "bench.ablation.service", " ".join(row.switches)),
        *("serve", "--journal", "none", *(f"--backend={url}" for url in engines)),
        *("--agent", f"{AblationAgent.__module__}:{AblationAgent.__qualname__}"),
        *("--sandbox", "bubblewrap", "--drain-s", "0"),
        *("--run-workers", str(size.slots), "--eval-workers", str(size.eval_workers)),
        *("--warm-sandboxes", str(0 if is_serial else row.warm_sandboxes)),
        *(("--init-workers", str(size.slots), "--ready-rollouts", "1") if is_serial else ()),
    ]


def _draw_all(
    row: Row, seed: int, size: Size, engines: list[str], delay_s: float, client: RolloutClient
) -> Run:
    spec = SamplerSpec(filter=FILTER, surplus=row.surplus, groups_at_once=size.groups_at_once)
    candidates = workload.candidates(seed, size, delay_s)
    given: list[list[Rollout]] = []
    sampler = SamplerClient(client, "s", spec, candidates)
    sampler.draw("d0", DrawSpec(target=size.target))
    watch, began = Watch(), time.monotonic()
    for number in range(1, size.draws):
        given += sampler.draw(f"d{number}", DrawSpec(target=size.target))[1]
    wall_s, quiet = time.monotonic() - began, watch.quiet()
    return Run(
        groups_per_s=len(given) / wall_s,
        wasted=_wasted(_turns(engines)),
        action_ms=[1e3 * one for one in _action_s(given)],
        quiet=quiet,
    )


def _turns(engines: Sequence[str]) -> Counter[str]:
    """Returns the model calls of a run, by group."""
    turns: Counter[str] = Counter()
    for url in engines:
        turns.update(httpx.get(f"{url}/report", trust_env=False).json())
    return turns


def _wasted(turns: Mapping[str, int]) -> float:
    """Returns the share of turns in attempts that a later attempt at the same task replaced."""
    wasted = sum(own for group_id, own in turns.items() if _next_attempt(group_id) in turns)
    return wasted / sum(turns.values())


def _next_attempt(group_id: str) -> str:
    name, _, attempt = group_id.rpartition(":")
    return f"{name}:{int(attempt) + 1}"


def _action_s(groups: Iterable[Sequence[Rollout]]) -> Iterator[float]:
    for rollout in (one for group in groups for one in group):
        if rollout.trajectory is not None:
            for turn in rollout.trajectory.turns:
                yield from (call.duration_s for call in turn.tool_calls)
