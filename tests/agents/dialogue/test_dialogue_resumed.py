"""Dialogues in a service that dies between turns: they continue with the records, and with the
conversation, that they had."""

import signal
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.agents.registry import AgentRegistry
from prorl_service.agents.services import OperatorServices
from prorl_service.client import RolloutClient
from prorl_service.inference.pool import BackendPool
from prorl_service.net import chat_model
from prorl_service.net.chat_model import ChatModel, ChatModelConfig
from prorl_service.pipeline.pipeline import Pipeline
from prorl_service.resume import saving
from prorl_service.rollouts.journal import Journal
from prorl_service.sandbox.base import ToolResult
from prorl_service.schemas import BackendSpec, Blame, Group, Rollout, RolloutState
from prorl_service.testing import FakeSandboxes, StubApi, StubEngine
from prorl_service.testing.replies import token_ids
from prorl_service.testing.stubs import Messages
from prorl_service.tokens.chat import ChatFormat
from tests.agents.dialogue.shop import REPLIES, answers, whole_task
from tests.parts import trajectory_of
from tests.pipeline.pipelines import FAST_PROBES
from tests.pipeline.test_journal_cuts import RecordingJournal, Write

pytestmark = pytest.mark.processes

WAIT_S = 120
GROUP = Group(group_id="g", task=whole_task())


class Clerk(StubEngine):
    """A policy that gives the replies of `shop`, by the number of its turns in the prompt."""

    def __init__(self, model: Path) -> None:
        super().__init__(model, lambda _: (), latency_s=0.02, max_model_len=1 << 20)
        self._chat = ChatFormat.load(model)

    def answer(self, prompt: list[int], session_id: str) -> tuple[list[int], bool]:
        turn = self._chat.decode(prompt).count("<|im_start|>assistant") - 1
        return token_ids(REPLIES[turn], self._chat)


def assert_same(ended: Rollout, expected: Rollout) -> None:
    assert (ended.state, ended.reward) == (RolloutState.DONE, 1.0), ended.error
    assert trajectory_of(ended).segments == trajectory_of(expected).segments
    assert ended.report == expected.report
    assert ended.reward_components == expected.reward_components


async def played(
    path: Path, pool: BackendPool, user: ChatModel, *, submits: bool = False
) -> tuple[Rollout, list[Write]]:
    sandboxes = FakeSandboxes(lambda name, arguments: ToolResult(""))
    services = OperatorServices(user=user)
    async with (
        RecordingJournal(path) as journal,
        Pipeline(journal, pool, sandboxes, AgentRegistry(), services=services) as pipeline,
    ):
        if submits:
            await pipeline.submit([GROUP])
        [ended] = [one.to_wire() async for one in pipeline.ended(["g.0"])]
    return ended, journal.writes


async def cut(writes: Sequence[Write], path: Path) -> None:
    async with Journal(path) as journal:
        for write in writes:
            await journal.write(write)


@pytest.mark.slow
async def test_a_dialogue_goes_on_wherever_the_journal_ends(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "BATCH_S", 0.001)
    resumed_at = set[int]()
    async with (
        StubApi(answers) as api,
        ChatModel(ChatModelConfig("user", api.url, ["person"])) as user,
        Clerk(tiny_model) as engine,
        BackendPool(tmp_path / "w", FAST_PROBES) as pool,
    ):
        await pool.add(BackendSpec(url=engine.url))
        expected, writes = await played(tmp_path / "whole", pool, user, submits=True)
        assert_same(expected, expected)
        for end in range(1, len(writes)):
            path = tmp_path / str(end)
            await cut(writes[:end], path)
            ended, _ = await played(path, pool, user)
            assert_same(ended, expected)
            resumed_at |= {one.turn for one in ended.resumed}
    assert {1, 2, 3} <= resumed_at


@contextmanager
def service(engine: StubEngine, user: StubApi, directory: Path) -> Iterator[local.LocalProcess]:
    journal = ["--journal", str(directory / "journal.sqlite"), "--resume"]
    options = ["--sandbox", "process", "--user-url", f"{user.url}/v1", "--user-model", "person"]
    with local.service(
        [engine.url], log=directory / "service.log", options=[*journal, *options]
    ) as running:
        yield running


def wait_for_turns(journal: Path, count: int) -> None:
    """Waits until the journal has so many; only the test's timeout bounds it."""
    with closing(sqlite3.connect(journal)) as db:
        while db.execute("SELECT COUNT(*) FROM turns").fetchone()[0] < count:
            time.sleep(0.02)


def test_a_dialogue_whose_service_is_killed_while_the_user_writes_goes_on(
    tmp_path: Path, tiny_model: Path
) -> None:
    is_asked, go = threading.Event(), threading.Event()

    def user(messages: Messages) -> str:
        if messages[-1]["content"] == "Done." and not go.is_set():
            is_asked.set()
            go.wait(WAIT_S)
        return answers(messages)

    with Clerk(tiny_model).in_thread() as engine, StubApi(user).in_thread() as api:
        with service(engine, api, tmp_path) as running:
            with RolloutClient(running.url) as client:
                client.submit([GROUP])
            assert is_asked.wait(WAIT_S)
            wait_for_turns(tmp_path / "journal.sqlite", 3)
            running.process.send_signal(signal.SIGKILL)
            running.process.wait()
        go.set()
        with service(engine, api, tmp_path) as running, RolloutClient(running.url) as client:
            [ended] = client.wait(GROUP.rollout_ids(), timeout_s=WAIT_S)
    assert (ended.state, ended.reward) == (RolloutState.DONE, 1.0), ended.error
    assert [one.turn for one in ended.resumed] == [3]
    conversation = [one["content"] for one in api.requests[-1]["messages"][2:]]
    assert conversation == ["I want tea instead of milk.", "Which order?", "Order 17.", "Done."]


async def test_a_dialogue_whose_user_fails_is_begun_again(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_model, "FIRST_DELAY_S", 0.0)
    async with (
        StubApi(answers) as api,
        ChatModel(ChatModelConfig("user", api.url, ["person"])) as user,
        Clerk(tiny_model) as engine,
        BackendPool(tmp_path / "w", FAST_PROBES) as pool,
    ):
        api.statuses = [500] * chat_model.ATTEMPTS
        await pool.add(BackendSpec(url=engine.url))
        ended, _ = await played(tmp_path / "journal", pool, user, submits=True)
    assert (ended.state, ended.reward, ended.attempt) == (RolloutState.DONE, 1.0, 2)
    [retried] = [one.retried for one in ended.stages if one.retried is not None]
    assert (retried.blame, retried.kind) == (Blame.EVALUATOR, "EvaluatorError")
