"""Inference engines that die, hang, crawl and talk nonsense while rollouts run.

Whatever they do, every accepted rollout ends once, and each of its tokens was sampled by an engine
that saw exactly the prompt before it.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.schemas import (
    NOT_SAMPLED,
    BackendState,
    Blame,
    Group,
    Rollout,
    RolloutState,
    Turn,
)
from prorl_service.testing import safetensors
from prorl_service.tokens.chat import ChatFormat
from tests.faults.engine import BAD_ANSWERS, LOGPROB, Fault, sampled
from tests.faults.processes import (
    WAIT_S,
    EngineProcess,
    Traces,
    engine_processes,
    group,
    ids_of,
    plain_http,
    service,
)
from tests.rollouts.journals import rollout_states
from tests.trainers import trainer

pytestmark = pytest.mark.processes

VERSION = 7
TURNS = 4


class Load:
    """Rollouts on a service of their own, and their results."""

    def __init__(self, running: local.LocalProcess, client: RolloutClient, traces: Traces) -> None:
        self.client = client
        self.ended: dict[str, Rollout] = {}
        self._running = running
        self._traces = traces
        self._groups: list[Group] = []

    def submit(self, name: str = "g", groups: int = 8) -> None:
        self._groups = [group(f"{name}{i}", n=4, turns=TURNS) for i in range(groups)]
        self.client.submit(self._groups)

    def wait(self) -> list[Rollout]:
        """Returns the ends of the rollouts submitted last, as one stream reports them."""
        body = {"rollout_ids": ids_of(self._groups)}
        with (
            plain_http(self._running.url, WAIT_S) as http,
            http.stream("POST", "/v1/rollouts/stream", json=body) as response,
        ):
            lines = [line for line in response.iter_lines() if line]
        ended = [Rollout.model_validate_json(line) for line in lines]
        self._traces.note(self._running)
        told = Counter(rollout.rollout_id for rollout in ended)
        assert told == Counter(body["rollout_ids"])
        self.ended |= {rollout.rollout_id: rollout for rollout in ended}
        return ended

    def add(self, engine: EngineProcess) -> None:
        """Adds an engine that is no training's own."""
        with RolloutClient(self._running.url) as operator:
            operator.add_backend(engine.url)

    def until(self, engine: EngineProcess, state: BackendState) -> None:
        while self._state_of(engine) is not state:
            time.sleep(0.05)

    def _state_of(self, engine: EngineProcess) -> BackendState:
        states = {one.backend_id: one.state for one in self.client.backends()}
        return states[engine.backend_id]


@contextmanager
def load_on(engines: Sequence[EngineProcess], directory: Path, *options: str) -> Iterator[Load]:
    """Yields a load that must leave nothing but a journal in which every rollout has ended."""
    traces = Traces()
    urls = [engine.url for engine in engines]
    with (
        service(urls, directory, *options) as running,
        trainer(running.url) as client,
    ):
        client.stream_weights([safetensors(b"weights")], after=VERSION - 1)
        load = Load(running, client, traces)
        yield load
        client.health()
    traces.assert_none_left()
    rows = rollout_states(directory / "journal.sqlite")
    assert sorted(rows) == sorted((one, ended.state.value) for one, ended in load.ended.items())


def assert_exact(rollout: Rollout, chat: ChatFormat) -> None:
    """Asserts that each turn was sampled by an engine that saw exactly the tokens before it."""
    assert rollout.trajectory is not None
    (segment,) = rollout.trajectory.segments
    is_sampled = [0] * len(segment.response_ids)
    for turn in rollout.trajectory.turns:
        prompt_ids = segment.prompt_ids + segment.response_ids[: turn.start]
        answer = [*sampled(prompt_ids), chat.end_of_turn_id]
        assert segment.response_ids[turn.start : turn.stop] == answer
        is_sampled[turn.start : turn.stop] = [1] * len(answer)
    assert segment.loss_mask == is_sampled
    assert segment.logprobs == [LOGPROB if one else 0.0 for one in is_sampled]
    assert segment.policy_versions == [VERSION if one else NOT_SAMPLED for one in is_sampled]


def assert_all_done(rollouts: Sequence[Rollout], chat: ChatFormat) -> None:
    for rollout in rollouts:
        assert rollout.state is RolloutState.DONE, rollout.error
        assert rollout.attempt == 1
        assert_exact(rollout, chat)
        assert len(turns(rollout)) == TURNS


def turns(rollout: Rollout) -> list[Turn]:
    assert rollout.trajectory is not None
    return rollout.trajectory.turns


def homes(rollout: Rollout) -> set[str]:
    """Returns the ids of the engines that sampled the rollout."""
    return {turn.backend for turn in turns(rollout)}


def test_rollouts_of_a_killed_engine_continue_elsewhere(
    tiny_model: Path, tmp_path: Path, chat: ChatFormat
) -> None:
    with engine_processes(tiny_model, 2) as engines, load_on(engines, tmp_path) as load:
        killed, other = engines
        killed.misbehave(Fault("killed", sound_calls=TURNS - 1))
        load.submit()
        ended = load.wait()
        assert_all_done(ended, chat)
        assert any(len(homes(rollout)) == 2 for rollout in ended)
        load.until(killed, BackendState.DOWN)
        killed.kill()
        killed.start()
        load.until(killed, BackendState.HEALTHY)
        other.kill()
        load.submit("after")
        after = load.wait()
        assert_all_done(after, chat)
        assert [homes(rollout) for rollout in after] == [{killed.backend_id}] * len(after)


def test_rollouts_of_an_engine_that_hangs_continue_elsewhere(
    tiny_model: Path, tmp_path: Path, chat: ChatFormat
) -> None:
    with engine_processes(tiny_model, 2) as engines, load_on(engines, tmp_path) as load:
        hung, _ = engines
        hung.misbehave(Fault("hung", sound_calls=TURNS - 1, once=True))
        load.submit()
        ended = load.wait()
        assert_all_done(ended, chat)
        assert any(len(homes(rollout)) == 2 for rollout in ended)
        load.until(hung, BackendState.DOWN)
        hung.go_on()
        load.until(hung, BackendState.HEALTHY)


def test_a_slow_engine_gets_few_calls(tiny_model: Path, tmp_path: Path, chat: ChatFormat) -> None:
    with (
        engine_processes(tiny_model, 2, latency_s=0.2) as engines,
        load_on(engines, tmp_path) as load,
    ):
        slow, fast = engines
        slow.misbehave(Fault(slowdown=10))
        load.submit()
        assert_all_done(load.wait(), chat)
        assert 3 * slow.counts().well < fast.counts().well


@pytest.mark.parametrize("name", BAD_ANSWERS)
@pytest.mark.sampled(3)
def test_a_call_that_one_engine_answers_badly_goes_to_another(
    name: str, tiny_model: Path, tmp_path: Path, chat: ChatFormat
) -> None:
    with engine_processes(tiny_model, 2) as engines, load_on(engines, tmp_path) as load:
        bad, _ = engines
        bad.misbehave(Fault(name, sound_calls=TURNS))
        load.submit()
        ended = load.wait()
        assert_all_done(ended, chat)
        assert bad.counts().badly > 0
        told = [turn.backend for rollout in ended for turn in turns(rollout)]
        assert told.count(bad.backend_id) <= TURNS


@pytest.mark.logs("the last 32 rollouts all failed")
def test_rollouts_fail_without_a_sound_engine_and_succeed_with_one(
    tiny_model: Path, tmp_path: Path, chat: ChatFormat
) -> None:
    options = ["--wait-for-backend-s", "1", "--max-attempts", "1"]
    with engine_processes(tiny_model, 2) as engines, load_on(engines, tmp_path, *options) as load:
        for engine in engines:
            engine.misbehave(Fault("status 500", sound_calls=1))
        load.submit()
        failed = load.wait()
        for rollout in failed:
            assert rollout.state is RolloutState.FAILED
            assert rollout.error is not None
            assert (rollout.error.blame, rollout.error.retryable) == (Blame.BACKEND, True)
            assert rollout.reward is None
            if rollout.trajectory is not None:
                assert_exact(rollout, chat)
        assert any(rollout.trajectory for rollout in failed)
        engines[0].misbehave(Fault())
        load.until(engines[0], BackendState.HEALTHY)
        load.submit("after")
        assert_all_done(load.wait(), chat)


def test_rollouts_wait_for_an_engine_that_is_added(
    tiny_model: Path, tmp_path: Path, chat: ChatFormat
) -> None:
    with (
        engine_processes(tiny_model, 2) as (dead, added),
        load_on([dead], tmp_path) as load,
    ):
        dead.misbehave(Fault("killed", sound_calls=TURNS - 1))
        load.submit()
        load.until(dead, BackendState.DOWN)
        load.add(added)
        load.client.remove_backend(dead.backend_id)
        ended = load.wait()
        assert_all_done(ended, chat)
        assert any(len(homes(rollout)) == 2 for rollout in ended)
