"""A journal that ends after any of its writes: each rollout continues from whole turns or starts
from scratch, and ends once, with the tokens that it would have had."""

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import pytest

from prorl_service.agents.base import RolloutContext, Verdict
from prorl_service.agents.registry import AgentRegistry
from prorl_service.errors import SandboxError
from prorl_service.inference.pool import BackendPool
from prorl_service.pipeline.pipeline import Pipeline
from prorl_service.resume import rows, saving
from prorl_service.rollouts.journal import Journal, tables
from prorl_service.sandbox.base import ToolResult
from prorl_service.schemas import BackendSpec, FinishReason, Message, Rollout, RolloutState
from prorl_service.testing import FakeSandboxes, StubEngine
from prorl_service.testing.replies import token_ids
from prorl_service.tokens.chat import ChatFormat
from tests.parts import trajectory_of
from tests.pipeline.pipelines import FAST_PROBES, PlainAgent, group_of, pipeline_of, taken

TURNS = 3
Write = Callable[[Connection], Any]


class Talker(PlainAgent):
    """An agent that answers each reply of the policy with its number."""

    name = "talker"
    restores = "conversation"

    async def run(self, rollout: RolloutContext) -> FinishReason:
        prompt = rollout.prompt_ids
        while len(rollout.turns) < TURNS:
            await rollout.sample(prompt)
            prompt = rollout.next_prompt([Message(role="user", content=f"{len(rollout.turns)}.")])
            await rollout.turn_ended(prompt)
        return FinishReason.FINISHED

    async def eval(self, rollout: RolloutContext) -> Verdict:
        return Verdict(float(len(rollout.turns)))


class Fails(Talker):
    """An agent that fails right after its first turn, and then hangs."""

    name = "fails"
    failed: bool
    hangs: asyncio.Event

    async def run(self, rollout: RolloutContext) -> FinishReason:
        if Fails.failed:
            Fails.hangs.set()
            await asyncio.Event().wait()
        await rollout.sample(rollout.prompt_ids)
        await rollout.turn_ended(rollout.next_prompt([Message(role="user", content="Go.")]))
        Fails.failed = True
        raise SandboxError("it is gone")


GROUP = group_of(Talker, n=2)


class RecordingJournal(Journal):
    """A journal that lists its writes in order."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.writes = list[Write]()

    def _ask(self, work: Write, *, is_read: bool = False, **others: Any) -> "asyncio.Future[Any]":
        if not is_read:
            self.writes.append(work)
        return super()._ask(work, is_read=is_read, **others)


class Naming(StubEngine):
    """An engine that answers with the rollout's id and the length of the prompt."""

    def __init__(self, model: Path, chat: ChatFormat) -> None:
        super().__init__(model, lambda _: (), latency_s=0.06)
        self._chat = chat

    def answer(self, prompt: list[int], session_id: str) -> tuple[list[int], bool]:
        return token_ids(f"{session_id} {len(prompt)}", self._chat)


async def cut(writes: Sequence[Write], path: Path) -> dict[str, int]:
    """Writes a journal that ends after these. Returns how many turns it has of each rollout, all
    of those of an ended one."""
    numbers = {}
    async with Journal(path) as journal:
        for write in writes:
            await journal.write(write)
        for one in GROUP.rollout_ids():
            kept = await journal.read(rows.saved, one)
            if kept is not None:
                kept.check()
            has_ended = await journal.read(tables.answer, one) is not None
            assert not (has_ended and kept)
            whole = 0 if kept is None else len(kept.turns)
            numbers[one] = TURNS if has_ended else whole
    return numbers


async def played(
    path: Path, backends: BackendPool, *, submits: bool = False
) -> tuple[list[Rollout], list[Write]]:
    """Runs a pipeline until all that its journal holds has ended. Returns the journal's writes,
    too."""
    agents = AgentRegistry([f"{Talker.__module__}:{Talker.__qualname__}"])
    sandboxes = FakeSandboxes(lambda name, arguments: ToolResult(""))
    async with (
        RecordingJournal(path) as journal,
        Pipeline(journal, backends, sandboxes, agents) as pipeline,
    ):
        if submits:
            await pipeline.submit([GROUP])
        ended = []
        if await journal.read(tables.known, [GROUP.group_id]):
            ended = [one async for one in taken(pipeline, GROUP.rollout_ids())]
    return sorted(ended, key=lambda one: one.rollout_id), journal.writes


def assert_same(ended: Sequence[Rollout], expected: Sequence[Rollout]) -> None:
    for rollout, other in zip(ended, expected, strict=True):
        assert (rollout.state, rollout.reward) == (RolloutState.DONE, TURNS), rollout.error
        assert trajectory_of(rollout).segments == trajectory_of(other).segments


@pytest.mark.slow
async def test_rollouts_end_once_wherever_the_journal_ends(
    tmp_path: Path, tiny_model: Path, chat: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "BATCH_S", 0.01)  # turns in transactions of their own
    rng = random.Random(0)
    async with Naming(tiny_model, chat) as engine, BackendPool(tmp_path / "w", FAST_PROBES) as pool:
        await pool.add(BackendSpec(url=engine.url))
        expected, writes = await played(tmp_path / "whole", pool, submits=True)
        assert_same(expected, expected)
        resumed_at = set[int]()
        for end in range(len(writes) + 1):
            history = writes[:end]
            for again in range(2):  # the service that goes on is killed, too
                path = tmp_path / f"{end}.{again}"
                have = await cut(history, path)
                calls = engine.calls
                ended, more = await played(path, pool)
                if not ended:
                    assert set(have.values()) == {0}
                    break
                assert_same(ended, expected)
                assert engine.calls - calls == sum(TURNS - turns for turns in have.values())
                resumed_at |= {one.resumed[-1].turn for one in ended if one.resumed}
                history = [*history, *more[: rng.randrange(len(more) + 1)]]
    assert len(resumed_at) >= 2


@pytest.mark.slow
async def test_a_retry_leaves_no_turn_of_the_attempt_before(
    tmp_path: Path, tiny_model: Path, chat: ChatFormat
) -> None:
    path, group = tmp_path / "j", group_of(Fails)
    Fails.failed, Fails.hangs = False, asyncio.Event()
    async with (
        Naming(tiny_model, chat) as engine,
        pipeline_of([Fails], engine, tmp_path, journal=path) as pipeline,
    ):
        await pipeline.submit([group])
        await Fails.hangs.wait()
        await asyncio.sleep(2 * saving.BATCH_S)
    async with Journal(path) as journal:
        assert await journal.read(rows.saved, group.rollout_id(0)) is None
