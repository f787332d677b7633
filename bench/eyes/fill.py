"""A journal and a shelf as a long run leaves them: rollouts of every kind, acknowledged."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.journal.tables import AcceptedRow, EndedRow
from prorl_service.schemas import (
    Blame,
    ErrorInfo,
    Figures,
    FinishReason,
    Group,
    Message,
    Rollout,
    RolloutState,
    Sampling,
    Segment,
    Stage,
    Task,
    Timings,
    ToolCallRecord,
    Trajectory,
    Turn,
)
from prorl_service.schemas.arrays import PACKED
from prorl_service.shelf.policy import ShelfOptions
from prorl_service.shelf.shelving import Now
from prorl_service.shelf.store import Shelf

RUN = "bench"
SIBLINGS = 8
GROUPS_A_STEP = 32
AGENTS = ("math", "code", "swe", "stem")
TOKENS = 2048
BEGAN_AT = 1.7e9


async def fill(journal_path: Path, rollouts: int, options: ShelfOptions) -> None:
    """Fills a shelf: `SIBLINGS` rollouts a group, `GROUPS_A_STEP` groups a policy version."""
    rng = random.Random(0)
    journal = Journal(journal_path)
    journal.claim(RUN, resume=True)
    shelf = Shelf.open(journal_path, RUN, options)
    assert shelf is not None
    journal.follow(shelf)
    async with journal:
        for step in range(rollouts // (SIBLINGS * GROUPS_A_STEP)):
            shelf.set_now(Now(policy_version=step, model="digest"))
            groups = list(_groups(rng, step))
            created_at = BEGAN_AT + 60 * step
            accepted = (
                AcceptedRow(one.group_id, one.n, one.model_dump_json().encode(), created_at)
                for one in groups
            )
            assert await journal.accept(list(accepted))
            rows = (_row(rng, one, i, step, created_at) for one in groups for i in range(one.n))
            await asyncio.gather(*map(journal.end, rows))
            await journal.forget([one.group_id for one in groups])
    shelf.close()


def _groups(rng: random.Random, step: int) -> Iterator[Group]:
    for number in range(GROUPS_A_STEP):
        task = Task(
            task_id=f"task{rng.randrange(5000)}",
            agent=rng.choice(AGENTS),
            messages=[Message(role="user", content="What is to be done? " * 20)],
        )
        yield Group(group_id=f"step{step}-group{number}", task=task, n=SIBLINGS)


def _row(rng: random.Random, group: Group, index: int, step: int, created_at: float) -> EndedRow:
    error, state, reason = None, RolloutState.DONE, FinishReason.FINISHED
    fate = rng.random()
    if fate < 0.002:
        state = RolloutState.CANCELLED
    elif fate < 0.02:
        state, error = RolloutState.FAILED, _error(rng)
    elif fate < 0.1:
        reason = rng.choice([FinishReason.LENGTH, FinishReason.MAX_TURNS, FinishReason.TIMEOUT])
    rollout = Rollout(
        rollout_id=group.rollout_id(index),
        group_id=group.group_id,
        task_id=group.task.task_id,
        agent=group.task.agent,
        index=index,
        state=state,
        attempt=1,
        error=error,
        reward=round(rng.random(), 2) if state is RolloutState.DONE else None,
        reward_components={"correct": 1.0, "answered": 1.0, "well_formed": 0.0},
        oldest_policy_version=max(0, step - rng.randrange(3)),
        newest_policy_version=step,
        trajectory=_trajectory(rng, step, reason),
        timings=Timings(queue_s=1.5, init_s=0.25, run_s=40.5, eval_s=2.5, waited_s=0.125),
        created_at=created_at,
    )
    summary = rollout.model_copy(update={"trajectory": None, "report": None})
    return EndedRow(
        rollout.rollout_id,
        rollout.group_id,
        1,
        state,
        summary.model_dump_json().encode(),
        rollout.model_dump_json(context=PACKED).encode(),
        Figures.of(rollout.trajectory),
        created_at + 45,
    )


def _error(rng: random.Random) -> ErrorInfo:
    return ErrorInfo(
        kind="SandboxError",
        blame=rng.choices(list(Blame), [100, 100, 100, 100, 100, 1])[0],
        message="the sandbox ended before its command did",
        hint="look at the last turn",
        stage=Stage.RUN,
    )


def _trajectory(rng: random.Random, step: int, reason: FinishReason) -> Trajectory:
    half = TOKENS // 2
    segment = Segment(
        prompt_ids=rng.choices(range(50_000), k=256),
        response_ids=rng.choices(range(50_000), k=TOKENS),
        loss_mask=[1] * half + [0] * half,
        logprobs=[-rng.expovariate(1)] * half + [0.0] * half,
        policy_versions=[step] * half + [-1] * half,
    )
    call = ToolCallRecord(
        name="bash", arguments={"command": "ls"}, output="README.md\n" * 20, duration_s=0.1
    )
    turns = [
        Turn(
            segment=0,
            start=start,
            stop=start + half // 4,
            text="I look at the files first. " * 10,
            finish_reason="stop",
            tool_calls=[call],
            model_s=2.5,
            backend="engine:8000",
        )
        for start in range(0, half, half // 4)
    ]
    return Trajectory(segments=[segment], turns=turns, finish_reason=reason, sampling=Sampling())
