"""A service that is killed again and again under 64 rollouts: what was sampled twice, what was
lost, and how soon each rollout continues."""

import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.resume.policy import LOST, TURNS, CountingEngine, Epoch, counting, group, outputs
from prorl_service import local
from prorl_service.agents.kept import KeptTurn
from prorl_service.client import RolloutClient
from prorl_service.pipeline.resuming import FILES_KEPT
from prorl_service.schemas import Group, Rollout, RolloutState
from recipes.swebench.rows import SweInstance

WAIT_S = 1800.0
PAUSE_S = (3.0, 12.0)
"""Bounds of the time from the start of a service to its kill, in seconds."""
MAX_ATTEMPTS = 20
"""More than the default: no rollout is to blame for these kills."""
GROUP_SIZE = 4


@dataclass(slots=True)
class Measured:
    kills: int = 0
    rollouts: int = 0
    lost: int = 0
    """Rollouts that did not end as if nothing had happened."""
    twice: int = 0
    """Rollouts whose answer changed after they had ended."""
    kept_share: float = 0.0
    """Share of the turns sampled before a kill that were not sampled again after it."""
    repeated: int = 0
    turns: int = 0
    resumed: int = 0
    """Rollouts that continued after a kill at least once."""
    resume_s_p50: float = 0.0
    bytes_per_token: float = 0.0
    layers_mb: float = 0.0
    """Most MB of saved sandboxes."""
    left_bytes: int = 0
    """Bytes of turns and sandboxes that are left when all have ended."""
    problems: list[str] = field(default_factory=list)


def groups_of(kinds: dict[str, int], instances: Sequence[SweInstance]) -> list[Group]:
    """`kinds`: numbers of rollouts."""
    made = []
    for kind, count in kinds.items():
        for number in range(count // GROUP_SIZE):
            instance = instances[number % len(instances)] if kind == "swe" else None
            made.append(group(kind, str(number), GROUP_SIZE, instance))
    return made


def measure(
    directory: Path,
    kills: int,
    kinds: dict[str, int],
    instances: Sequence[SweInstance],
    *,
    latency_s: float,
    options: Sequence[str] = (),
    seed: int = 0,
) -> Measured:
    measured = Measured()
    submitted = groups_of(kinds, instances)
    with counting(directory / "model", latency_s, instances) as engine:
        ended = _run(engine, directory, kills, submitted, options, random.Random(seed), measured)
        for rollout in ended:
            if problem := _problem(rollout, engine):
                measured.problems.append(f"{rollout.rollout_id}: {problem}")
        _count(measured, ended, engine.epochs)
    measured.left_bytes = _kept(directory)[0] + _layers(directory)
    return measured


def _run(
    engine: CountingEngine,
    directory: Path,
    kills: int,
    submitted: Sequence[Group],
    options: Sequence[str],
    rng: random.Random,
    measured: Measured,
) -> list[Rollout]:
    ids = [one for group in submitted for one in group.rollout_ids()]
    answers: dict[str, Rollout] = {}
    per_token = []
    while True:
        engine.begin_epoch()
        with _service(engine, directory, options) as service:
            with RolloutClient(service.url) as client:
                _compare(client.submit(submitted), answers, measured)
                if measured.kills == kills:
                    return [*client.stream(ids, timeout_s=WAIT_S)]
                time.sleep(rng.uniform(*PAUSE_S))
            service.kill()
        measured.kills += 1
        size, tokens = _kept(directory)
        if tokens:
            per_token.append(size / tokens)
            measured.bytes_per_token = median(per_token)
        measured.layers_mb = max(measured.layers_mb, _layers(directory) / 1e6)


@contextmanager
def _service(
    engine: CountingEngine, directory: Path, options: Sequence[str]
) -> Iterator[local.LocalProcess]:
    journal = ["--journal", str(directory / "journal.sqlite"), "--resume"]
    sandbox = ["--sandbox", "bubblewrap", "--init-workers", "16"]
    with local.service(
        [engine.url],
        log=directory / "service.log",
        options=[*journal, *sandbox, "--max-attempts", str(MAX_ATTEMPTS), *options],
    ) as running:
        yield running


def _compare(now: Sequence[Rollout], answers: dict[str, Rollout], measured: Measured) -> None:
    for rollout in now:
        if rollout.is_terminal and answers.setdefault(rollout.rollout_id, rollout) != rollout:
            measured.twice += 1


def _problem(rollout: Rollout, engine: CountingEngine) -> str:
    """Returns how it differs from one that was never interrupted; "" if in nothing."""
    if rollout.state is not RolloutState.DONE or rollout.reward != 1.0:
        return f"{rollout.state}, reward {rollout.reward}, {rollout.error}"
    assert rollout.trajectory is not None
    segments, turns = rollout.trajectory.segments, rollout.trajectory.turns
    if len(segments) != 1 or len(turns) != TURNS:
        return f"{len(segments)} segments, {len(turns)} turns"
    [segment] = segments
    calls = engine.prompts[rollout.rollout_id]
    for number, turn in enumerate(turns):
        prompt = [*segment.prompt_ids, *segment.response_ids[: turn.start]]
        if (prompt, segment.response_ids[turn.start : turn.stop]) not in calls:
            return f"turn {number} is not one that the engine sampled"
    if rollout.rollout_id.startswith("swe"):
        return ""
    return _told(rollout)


def _told(rollout: Rollout) -> str:
    """Returns what is wrong with the outputs of its commands."""
    for number, output in enumerate(outputs(rollout)):
        text = output.removeprefix(FILES_KEPT).strip()
        may_be_lost = output != text and rollout.rollout_id.startswith("kernel")
        if text != str(number + 1) and not (may_be_lost and text == LOST):
            return f"output {number} is {output!r}"
    return ""


def _count(measured: Measured, ended: Sequence[Rollout], epochs: Sequence[Epoch]) -> None:
    measured.rollouts = len(ended)
    measured.lost = len(measured.problems)
    measured.turns = len(ended) * TURNS
    measured.repeated = sum(epoch.repeated for epoch in epochs)
    measured.kept_share = 1 - measured.repeated / max(1, sum(epoch.had for epoch in epochs))
    measured.resumed = sum(bool(rollout.resumed) for rollout in ended)
    waits = [s for epoch in epochs for s in epoch.first_calls.values()]
    measured.resume_s_p50 = median(waits) if waits else 0.0


def _kept(directory: Path) -> tuple[int, int]:
    """Returns bytes and tokens of the turns in the journal."""
    with closing(sqlite3.connect(directory / "journal.sqlite")) as db:
        contents = [content for (content,) in db.execute("SELECT content FROM turns")]
    turns = map(KeptTurn.from_bytes, contents)
    tokens = sum(len(one.added_ids) + len(one.token_ids) for one in turns)
    return sum(map(len, contents)), tokens


def _layers(directory: Path) -> int:
    layers = directory / "journal.sqlite.layers"
    return sum(one.stat().st_size for one in layers.iterdir()) if layers.is_dir() else 0
