"""A rollout of several conversations goes on with the very prompt that it would have sampled, and
kept turns are believed only as they were written."""

import logging
import random
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from prorl_service.agents.base import Prompt, RolloutContext, Verdict
from prorl_service.agents.registry import AgentRegistry
from prorl_service.agents.services import Requirements
from prorl_service.errors import ProRLError
from prorl_service.inference.pool import BackendPool
from prorl_service.pipeline.pipeline import Pipeline
from prorl_service.resume import rows, saving
from prorl_service.resume.turns import Continuation
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.sandbox.base import ToolResult
from prorl_service.schemas import (
    BackendSpec,
    FinishReason,
    Limits,
    Message,
    Replay,
    Rollout,
    RolloutState,
    Start,
)
from prorl_service.server.compose import check_unfinished
from prorl_service.testing import FakeSandboxes
from prorl_service.tokens.chat import ChatFormat
from prorl_service.tools.openenv.servers import Wanted
from tests.parts import trajectory_of
from tests.pipeline.pipelines import FAST_PROBES, PlainAgent, group_of
from tests.pipeline.test_journal_cuts import Naming, RecordingJournal, Write

TURNS = 5


class Changing(PlainAgent):
    """An agent that goes on, compacts, or returns to an earlier conversation, as its task says."""

    name = "changing"
    restores = "conversation"

    async def run(self, rollout: RolloutContext) -> FinishReason:
        prompt: Sequence[int] = rollout.prompt_ids
        while (number := len(rollout.turns)) < TURNS:
            if rollout.room(len(prompt)) <= 0:
                return FinishReason.LENGTH
            await rollout.sample(prompt)
            prompt = self._next(rollout, str(self.task.data["plan"])[number], number)
            await rollout.turn_ended(prompt)
        return FinishReason.FINISHED

    def _next(self, rollout: RolloutContext, step: str, number: int) -> Sequence[int]:
        message = Message(role="user", content=f"{number}.")
        if step == "c":
            rollout.begin(Prompt([Message(role="user", content=f"Summary {number}.")]))
            return rollout.prompt_ids
        if step == "r":
            turn = rollout.turns[0]
            ids = rollout.attempt.ledger.before(turn.segment, turn.stop)
            ids.extend(rollout.attempt.chat.delta_ids([message], after=ids[-1]))
            return ids
        return rollout.next_prompt([message])

    async def eval(self, rollout: RolloutContext) -> Verdict:
        of_turns = {number: number / 8 for number in range(1, len(rollout.turns))}
        return Verdict(float(len(rollout.prompt_ids)), turn_rewards=of_turns)


async def replayed(writes: Sequence[Write], path: Path) -> None:
    async with Journal(path) as journal:
        for write in writes:
            await journal.write(write)


async def played(
    path: Path, pool: BackendPool, plan: str = "", start: Start | None = None
) -> tuple[Rollout, list[Write]]:
    agents = AgentRegistry([f"{Changing.__module__}:{Changing.__qualname__}"])
    sandboxes = FakeSandboxes(lambda name, arguments: ToolResult(""))
    group = group_of(Changing, limits=Limits(max_response_tokens=400), plan=plan)
    group.start = start
    async with (
        RecordingJournal(path) as journal,
        Pipeline(journal, pool, sandboxes, agents) as pipeline,
    ):
        if plan:
            await pipeline.submit([group])
        [ended] = [one.to_wire() async for one in pipeline.ended(["g.0"])]
    return ended, journal.writes


def assert_same(ended: Rollout, expected: Rollout) -> None:
    assert (ended.state, ended.reward) == (RolloutState.DONE, expected.reward), ended.error
    assert trajectory_of(ended).segments == trajectory_of(expected).segments
    rewards = [turn.reward for turn in trajectory_of(ended).turns]
    assert rewards == [number / 8 or None for number in range(len(rewards))]
    assert trajectory_of(ended).finish_reason == trajectory_of(expected).finish_reason


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_any_conversations_go_on_wherever_the_journal_ends(
    tmp_path: Path,
    tiny_model: Path,
    chat: ChatFormat,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    monkeypatch.setattr(saving, "BATCH_S", 0.001)
    rng = random.Random(seed)
    plan = "".join(["ccr", "gcr", "crg"][seed % 3] + rng.choice("gcr") + rng.choice("gcr"))
    resumed_at, repeated = set[int](), set[int]()
    async with Naming(tiny_model, chat) as engine, BackendPool(tmp_path / "w", FAST_PROBES) as pool:
        await pool.add(BackendSpec(url=engine.url))
        expected, writes = await played(tmp_path / "whole", pool, plan)
        assert_same(expected, expected)
        for end in range(1, len(writes)):
            path = tmp_path / str(end)
            await replayed(writes[:end], path)
            ended, _ = await played(path, pool)
            assert_same(ended, expected)
            resumed_at |= {one.turn for one in ended.resumed}
            repeated |= {one.repeated_calls for one in ended.resumed}
    assert len(resumed_at) >= 2
    assert repeated == {0, 1}  # cut after a turn was kept, and after the agent had begun to act


@pytest.mark.slow
@pytest.mark.parametrize("turns", range(1, TURNS))
async def test_a_branch_goes_on_wherever_the_journal_ends(
    tmp_path: Path,
    tiny_model: Path,
    chat: ChatFormat,
    monkeypatch: pytest.MonkeyPatch,
    turns: int,
) -> None:
    """It samples what the other one did, and is never trained on the turns that it began with."""
    monkeypatch.setattr(saving, "BATCH_S", 0.001)
    async with Naming(tiny_model, chat) as engine, BackendPool(tmp_path / "w", FAST_PROBES) as pool:
        await pool.add(BackendSpec(url=engine.url))
        other, _ = await played(tmp_path / "other", pool, "gcrgr")
        start = Start(turns=turns, trajectory=trajectory_of(other))
        expected, writes = await played(tmp_path / "whole", pool, "gcrgr", start)
        assert_branched(expected, other, turns)
        for end in range(1, len(writes)):
            path = tmp_path / str(end)
            await replayed(writes[:end], path)
            ended, _ = await played(path, pool)
            assert_branched(ended, other, turns)


def assert_branched(ended: Rollout, other: Rollout, turns: int) -> None:
    assert ended.state is RolloutState.DONE, ended.error
    found, then = trajectory_of(ended), trajectory_of(other)
    assert [one.response_ids for one in found.segments] == [
        one.response_ids for one in then.segments
    ]
    masks = [[0] * len(one.response_ids) for one in then.segments]
    for turn in then.turns[turns:]:
        masks[turn.segment][turn.start : turn.stop] = [1] * (turn.stop - turn.start)
    assert [one.loss_mask for one in found.segments] == masks
    assert ended.replay == Replay(turns=turns)


def flipped(db: sqlite3.Connection, rng: random.Random) -> None:
    """Flips one bit of something that was kept."""
    table, row_id, content = rng.choice(
        [("turns", *row) for row in db.execute("SELECT rowid, content FROM turns")]
        + [
            ("continuations", *row)
            for row in db.execute("SELECT rowid, content FROM continuations")
        ]
    )
    damaged = bytearray(content)
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    db.execute(f"UPDATE {table} SET content = ? WHERE rowid = ?", (bytes(damaged), row_id))


def without_one(db: sqlite3.Connection, rng: random.Random) -> None:
    numbers = [number for (number,) in db.execute("SELECT number FROM turns")]
    db.execute("DELETE FROM turns WHERE number = ?", (rng.choice(numbers),))


def of_another_model(db: sqlite3.Connection, rng: random.Random) -> None:
    """As a service would have written it that had another model."""
    kept = rows.saved(db, "g.0")
    assert kept is not None
    told = Continuation.model_validate_json(kept.content)
    content = told.model_copy(update={"model": "'another'"}).to_bytes()
    other = replace(kept, content=content)
    sealed = other.sealed(rows.checksum_of(other.turns), len(other.turns))
    rows.save(db, [sealed])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("damage", [flipped, without_one, of_another_model])
async def test_damaged_turns_are_not_believed(
    tmp_path: Path,
    tiny_model: Path,
    chat: ChatFormat,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[sqlite3.Connection, random.Random], None],
    seed: int,
) -> None:
    monkeypatch.setattr(saving, "BATCH_S", 0.001)
    async with Naming(tiny_model, chat) as engine, BackendPool(tmp_path / "w", FAST_PROBES) as pool:
        await pool.add(BackendSpec(url=engine.url))
        expected, writes = await played(tmp_path / "whole", pool, "gcrgc")
        for end in range(len(writes) - 1, 0, -1):
            (tmp_path / "cut").unlink(missing_ok=True)
            await replayed(writes[:end], tmp_path / "cut")
            with sqlite3.connect(tmp_path / "cut") as db:
                if rows.saved(db, "g.0") is not None:
                    break
        with sqlite3.connect(tmp_path / "cut") as db:
            damage(db, random.Random(seed))
        calls = engine.calls
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            ended, _ = await played(tmp_path / "cut", pool)
        assert engine.calls - calls == TURNS
    assert_same(ended, expected)
    assert [one.turn for one in ended.resumed] in ([], [0])
    said = [one.getMessage() for one in caplog.records if "from scratch" in one.getMessage()]
    assert len(said) == 1


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        (None, "`--agent`"),
        (Requirements(judge=True), "--judge-url"),
        (Requirements(mcp=["files"]), "'files'"),
        (Requirements(openenv=Wanted("echo")), "'echo'"),
        (Requirements(nemo_gym="games"), "'games'"),
        (Requirements(packages={"no_such_module": "math"}), "prorl-service[math]"),
    ],
)
async def test_a_resume_without_what_unfinished_work_needs_is_refused(
    tmp_path: Path,
    tiny_model: Path,
    chat: ChatFormat,
    monkeypatch: pytest.MonkeyPatch,
    needs: Requirements | None,
    said: str,
) -> None:
    """The service that accepted the work had an agent, a server, a judge or a package that this
    one lacks."""
    path = tmp_path / "j"
    async with Naming(tiny_model, chat) as engine, BackendPool(tmp_path / "w", FAST_PROBES) as pool:
        await pool.add(BackendSpec(url=engine.url))
        _, writes = await played(tmp_path / "whole", pool, "ggggg")
        await replayed(writes[:2], path)
        monkeypatch.setattr(Changing, "uses", needs)
        known = [] if needs is None else [f"{Changing.__module__}:{Changing.__qualname__}"]
        sandboxes = FakeSandboxes(lambda name, arguments: ToolResult(""))
        async with Journal(path) as journal:
            bare = Pipeline(journal, pool, sandboxes, AgentRegistry(known))
            with pytest.raises(ProRLError, match="1 rollouts of agent 'changing'") as refused:
                await check_unfinished(journal, bare.validator, ())
            assert "--abandon-agent changing" in refused.value.hint
            assert said in refused.value.message
            await check_unfinished(journal, bare.validator, ("changing",))
            [unfinished] = await journal.read(tables.unfinished)
            assert not unfinished.ended
