"""`model=tiny`: a policy that resolves some easy instances some of the time, made on a CPU.

It imitates a scripted oracle that makes the edits of the reference patch in one rollout and submits
immediately in the next. The oracle plays through the service, in real sandboxes, and its rewards
are checked. So the tiny model knows its instances by heart and says nothing about what a model can
learn: it exists to try the whole path without a GPU or a model hub.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from prorl_service import local
from prorl_service.agents.swe.agent import SweAgent
from prorl_service.client import RolloutClient
from prorl_service.errors import ProRLError
from prorl_service.inference.reference_engine.imitation import Imitation
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.sandbox import SandboxKind
from prorl_service.schemas import Group, Rollout
from prorl_service.utils.files import write_whole
from recipes.common.training.imitation import Transcript, warm_started
from recipes.swebench import oracle_policy
from recipes.swebench.rows import SweInstance

TIMEOUT_S = 600


def warm_started_on(
    rows: Sequence[SweInstance],
    cache: Path,
    config: Imitation,
    vocab_size: int,
    sandbox: SandboxKind,
) -> Path:
    """Returns the model's directory, below `cache`; trains the model if it is not there yet.

    Raises `ProRLError`.
    """
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / f"answers-{_digest(rows)}.json"
    if not kept.exists():
        write_whole(kept, json.dumps(_played(rows, cache, sandbox)))
    answers: dict[str, list[str]] = json.loads(kept.read_text())
    transcripts = [
        Transcript(
            prompt=SweAgent(row.task()).prompt(),
            replies=_script(row, fixes=fixes),
            answers=answers[row.instance_id] if fixes else [],
        )
        for row in rows
        for fixes in (True, False)
    ]
    return warm_started(cache, transcripts, config, vocab_size)


def _script(row: SweInstance, *, fixes: bool) -> list[str]:
    return oracle_policy.script(
        [*oracle_policy.edits(row), oracle_policy.SUBMIT] if fixes else [oracle_policy.SUBMIT]
    )


def _played(rows: Sequence[SweInstance], cache: Path, sandbox: SandboxKind) -> dict[str, list[str]]:
    """Returns the tools' answers to the edits, by instance."""
    scripts = {
        row.instance_id: [_script(row, fixes=True), _script(row, fixes=False)] for row in rows
    }
    groups = [Group(group_id=row.instance_id, task=row.task(), n=2) for row in rows]
    ids = [one for group in groups for one in group.rollout_ids()]
    options = ["--sandbox", sandbox, "--warm-sandboxes", "0"]
    log = cache / "oracle.log"
    with TemporaryDirectory() as directory:
        build_tiny_model(Path(directory))
        with (
            oracle_policy.serving(rows, Path(directory), scripts) as engine,
            local.service([engine.url], log=log, options=options) as service,
            RolloutClient(service.url) as client,
        ):
            client.submit(groups)
            rollouts = client.wait(ids, TIMEOUT_S)
    pairs = zip(rollouts[::2], rollouts[1::2], strict=True)
    return {first.task_id: _answers(first, second, log) for first, second in pairs}


def _answers(first: Rollout, second: Rollout, log: Path) -> list[str]:
    """Returns the answers of the rollout that fixes. Raises `ProRLError` unless only it
    resolves."""
    rewards = [first.reward, second.reward]
    if sorted(str(one) for one in rewards) != ["0.0", "1.0"]:
        errors = [one.error.message for one in (first, second) if one.error is not None]
        raise ProRLError(
            f"{first.task_id}: the oracle was given rewards {rewards}, not 1 and 0",
            hint=errors[0] if errors else f"{log} has the grader's verdicts",
        )
    trajectory = (first if first.reward else second).trajectory
    assert trajectory is not None
    return [call.output for turn in trajectory.turns[:-1] for call in turn.tool_calls]


def _digest(rows: Sequence[SweInstance]) -> str:
    return hashlib.sha256("\n".join(row.model_dump_json() for row in rows).encode()).hexdigest()[
        :16
    ]
