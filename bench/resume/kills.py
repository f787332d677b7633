"""A service that is killed again and again under 64 rollouts: what was sampled twice, what was
lost, and how soon each rollout continues."""

import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import frame
from bench.resume.policy import LOST, TURNS, CountingEngine, counting, group, outputs
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.resume.resumer import FILES_KEPT
from prorl_service.resume.turns import SavedTurn
from prorl_service.schemas import Group, Rollout, RolloutState
from recipes.swebench.offline import build_all, default_directory
from recipes.swebench.rows import SweInstance

KILLS, QUICK_KILLS = 20, 1
KINDS = {"files": 40, "kernel": 16, "swe": 8}
QUICK_KINDS = {"files": 4, "kernel": 4}
INSTANCES = 2
LATENCY_S, WAIT_S = 1.0, 1800.0
PAUSE_S = (3.0, 12.0)
"""Bounds of the time from the start of a service to its kill, in seconds."""
SAVE_EVERY_S = 0
"""Rollouts of ten seconds are too short for the default of ten seconds."""
MAX_ATTEMPTS = 20
"""More than the default: no rollout is to blame for these kills."""
GROUP_SIZE = 4


@dataclass(slots=True)
class Kills:
    """Counted while services are killed."""

    count: int = 0
    twice: int = 0
    """Rollouts whose answer changed after they had ended."""
    bytes_per_token: float = 0.0


def groups_of(kinds: dict[str, int], instances: Sequence[SweInstance]) -> list[Group]:
    """`kinds`: numbers of rollouts."""
    return [
        group(kind, str(n), GROUP_SIZE, instances[n % len(instances)] if kind == "swe" else None)
        for kind, count in kinds.items()
        for n in range(count // GROUP_SIZE)
    ]


def measure(quick: bool) -> frame.Found:
    kinds = QUICK_KINDS if quick else KINDS
    instances = [] if quick else build_all(default_directory(), progress=print)[:INSTANCES]
    submitted = groups_of(kinds, instances)
    counted = Kills()
    with TemporaryDirectory(prefix="prorl-bench-") as name:
        directory = Path(name)
        with counting(directory / "model", LATENCY_S, instances) as engine:
            ended = _run(engine, directory, QUICK_KILLS if quick else KILLS, submitted, counted)
            row = _row(engine, counted, ended)
    headline = {
        "kills": row["kills"],
        "turns_kept_share": round(row["kept_share"], 3),
        "rollouts_lost": row["lost"],
        "rollouts_twice": row["twice"],
        "bytes_per_token": round(row["bytes_per_token"], 1),
        "resume_s_p50": round(row["resume_s_p50"], 2),
    }
    return frame.Found([row], headline)


def _row(engine: CountingEngine, counted: Kills, ended: Sequence[Rollout]) -> frame.Row:
    """`lost`: rollouts that did not end as if nothing had happened."""
    problems = [text for rollout in ended if (text := _problem(rollout, engine))]
    print(*problems, sep="\n")
    repeated = sum(epoch.repeated for epoch in engine.epochs)
    waits = [s for epoch in engine.epochs for s in epoch.first_calls.values()]
    return {
        "kills": counted.count,
        "rollouts": len(ended),
        "lost": len(problems),
        "twice": counted.twice,
        "kept_share": 1 - repeated / max(1, sum(epoch.had for epoch in engine.epochs)),
        "resumed": sum(bool(rollout.resumed) for rollout in ended),
        "resume_s_p50": median(waits) if waits else 0.0,
        "bytes_per_token": counted.bytes_per_token,
    }


def _run(
    engine: CountingEngine, directory: Path, kills: int, submitted: Sequence[Group], counted: Kills
) -> list[Rollout]:
    rng = random.Random(0)
    ids = [one for group in submitted for one in group.rollout_ids()]
    answers: dict[str, Rollout] = {}
    per_token = []
    while True:
        engine.begin_epoch()
        with _service(engine, directory) as service:
            with RolloutClient(service.url) as client:
                for now in client.submit(submitted):
                    if now.is_terminal:
                        counted.twice += answers.setdefault(now.rollout_id, now) != now
                if counted.count == kills:
                    return [*client.stream(ids, timeout_s=WAIT_S)]
                time.sleep(rng.uniform(*PAUSE_S))
            service.kill()
        counted.count += 1
        size, tokens = _kept(directory)
        if tokens:
            per_token.append(size / tokens)
            counted.bytes_per_token = median(per_token)


@contextmanager
def _service(engine: CountingEngine, directory: Path) -> Iterator[local.LocalProcess]:
    options = [
        *("--journal", str(directory / "journal.sqlite"), "--resume"),
        *("--sandbox", "bubblewrap", "--init-workers", "16"),
        *("--max-attempts", str(MAX_ATTEMPTS), "--save-every-s", str(SAVE_EVERY_S)),
    ]
    log = directory / "service.log"
    with local.service([engine.url], log=log, options=options) as running:
        yield running


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


def _kept(directory: Path) -> tuple[int, int]:
    """Returns bytes and tokens of the turns in the journal."""
    with closing(sqlite3.connect(directory / "journal.sqlite")) as db:
        contents = [content for (content,) in db.execute("SELECT content FROM turns")]
    turns = map(SavedTurn.from_bytes, contents)
    tokens = sum(len(one.added_ids) + len(one.token_ids) for one in turns)
    return sum(map(len, contents)), tokens
