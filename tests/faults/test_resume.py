"""A service that is killed or stopped in the middle of rollouts: they continue from their last
whole turn, with the tokens that they had."""

import io
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue

from prorl_service import local
from prorl_service.cli.conversation import show_rollout
from prorl_service.cli.screen import Screen
from prorl_service.client import RolloutClient
from prorl_service.client.sampling import SamplerClient
from prorl_service.resume.resumer import FILES_KEPT
from prorl_service.schemas import Group, Limits, Message, Rollout, RolloutState, Task
from prorl_service.schemas.sampling import DrawSpec, DrawState, SamplerSpec
from prorl_service.testing import StubEngine, byte_model, call
from prorl_service.testing.replies import Reply, token_ids
from prorl_service.tokens.chat import ChatFormat
from tests.faults.processes import WAIT_S, ids_of, port_to_come_back_to

pytestmark = pytest.mark.processes

TURNS = 10
COMMAND = "echo {number} >> log; wc -l < log"


class Counting(StubEngine):
    """Asks for one command after the other, by the number of answers in the prompt; then answers
    with that number."""

    def __init__(self, model: Path, latency_s: float) -> None:
        super().__init__(model, lambda _: (), latency_s=latency_s, max_model_len=1 << 20)
        self.chat = ChatFormat.load(str(model), None)
        self.seen = Counter[tuple[int, ...]]()
        """Numbers of calls with each prompt."""
        self.command = COMMAND
        self.wrong = ""
        """Ending of the ids of rollouts whose last answer is wrong, if any."""

    def answer(self, prompt: list[int], session_id: str) -> tuple[list[int], bool]:
        self.seen[tuple(prompt)] += 1
        reply = self.reply(prompt)
        is_wrong = self.wrong and session_id.endswith(self.wrong) and isinstance(reply, str)
        return token_ids("0" if is_wrong else reply, self.chat)

    def reply(self, prompt: list[int]) -> Reply:
        answers = self.chat.decode(prompt, stopped=False).count("<tool_response>")
        if answers == TURNS - 1:
            return str(answers)
        return call("bash", command=self.command.format(number=answers))


@contextmanager
def counting(directory: Path, latency_s: float) -> Iterator[Counting]:
    directory.mkdir()
    byte_model.write(directory)
    with Counting(directory, latency_s).in_thread() as engine:
        yield engine


@contextmanager
def service(
    engine: Counting, directory: Path, *options: str, port: int | None = None
) -> Iterator[local.LocalProcess]:
    journal = ["--journal", str(directory / "journal.sqlite"), "--resume"]
    kept = ["--sandbox", "bubblewrap", "--save-every-s", "0"]
    with local.service(
        [engine.url],
        log=directory / "service.log",
        port=port,
        options=[*journal, *kept, *options],
    ) as running:
        yield running


def group(name: str, n: int) -> Group:
    messages = [Message(role="user", content=f"Count, {name}.")]
    data = {"answer": str(TURNS - 1), "answer_format": "plain"}
    task = Task(task_id=name, agent="math", messages=messages, data=data)
    limits = Limits(max_turns=TURNS, run_timeout_s=WAIT_S)
    return Group(group_id=name, task=task, n=n, limits=limits)


def assert_exact(rollout: Rollout, engine: Counting) -> None:
    """Each call's prompt is one that the engine saw, and what it sampled is its answer to that."""
    assert rollout.state is RolloutState.DONE, rollout.error
    assert rollout.reward == 1.0
    assert rollout.trajectory is not None
    [segment] = rollout.trajectory.segments
    assert len(rollout.trajectory.turns) == TURNS
    for turn in rollout.trajectory.turns:
        prompt = [*segment.prompt_ids, *segment.response_ids[: turn.start]]
        assert tuple(prompt) in engine.seen
        assert segment.response_ids[turn.start : turn.stop] == engine.answer(prompt, "")[0]
        engine.seen[tuple(prompt)] -= 1  # this look does not count
        assert set(segment.loss_mask[turn.start : turn.stop]) == {1}
        assert set(segment.logprobs[turn.start : turn.stop]) == {-0.5}


def outputs(rollout: Rollout) -> list[str]:
    assert rollout.trajectory is not None
    return [one.output for turn in rollout.trajectory.turns for one in turn.tool_calls]


def assert_counted(rollout: Rollout) -> None:
    """The file has a line more after each command: none was lost, none ran twice. What the model
    was told about a restart stands before the outputs of its first command after it."""
    told = outputs(rollout)
    notes = [output.startswith(FILES_KEPT) for output in told]
    lines = [output.removeprefix(FILES_KEPT).strip() for output in told]
    assert lines == [str(number + 1) for number in range(TURNS - 1)]
    after = {one.turn for one in rollout.resumed if 0 < one.turn < TURNS - 1}
    assert {number for number, has_note in enumerate(notes) if has_note} == after


def test_rollouts_go_on_after_kills(tmp_path: Path) -> None:
    rng = random.Random(0)
    port = port_to_come_back_to()
    groups = [group(f"g{number}", n=4) for number in range(4)]
    with counting(tmp_path / "model", latency_s=0.3) as engine:
        for kill in range(4):
            with service(engine, tmp_path, port=port) as running:
                with RolloutClient(running.url) as client:
                    client.submit(groups)
                    if kill == 3:
                        ended = client.wait(ids_of(groups), WAIT_S)
                    else:
                        time.sleep(rng.uniform(1.0, 2.0))
                if kill < 3:
                    running.kill()
        sampled = engine.calls
        for rollout in ended:
            assert_exact(rollout, engine)
            assert_counted(rollout)
    assert any(rollout.resumed for rollout in ended)
    assert all(one.away_s > 0 for rollout in ended for one in rollout.resumed)
    # A kill loses the call in flight and the turns that were not written yet, not all turns so far.
    assert sampled <= len(ended) * (TURNS + 3 * 2.5)
    assert [*(tmp_path / "journal.sqlite.layers").glob("*")] == []


def test_a_drain_stops_at_the_end_of_turns_and_nothing_is_sampled_again(tmp_path: Path) -> None:
    port = port_to_come_back_to()
    groups = [group("g", n=8)]
    with counting(tmp_path / "model", latency_s=0.2) as engine:
        with service(engine, tmp_path, "--save-every-s", "1000", port=port) as running:
            with RolloutClient(running.url) as client:
                client.submit(groups)
                while engine.calls < 24:
                    time.sleep(0.01)
            running.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            running.process.wait(WAIT_S)
            assert time.monotonic() - began < 20
        assert engine.calls < 8 * TURNS
        with service(engine, tmp_path, port=port) as running, RolloutClient(running.url) as client:
            ended = client.wait(ids_of(groups), WAIT_S)
            shown = client.text(ended[0].rollout_id)
        assert shown.resumed == ended[0].resumed
        show_rollout(Screen(page := io.StringIO()), shown)
        before, resumed, _ = page.getvalue().partition("resumed at another start")
        assert resumed
        assert len(re.findall(r"^turn \d+$", before, re.M)) == shown.resumed[0].turn
        assert engine.calls == 8 * TURNS
        for rollout in ended:
            assert_exact(rollout, engine)
            assert_counted(rollout)
            assert (len(rollout.resumed), rollout.attempt) == (1, 1)


def test_a_draw_goes_on_over_a_drain(tmp_path: Path) -> None:
    port = port_to_come_back_to()
    spec, draw = SamplerSpec(run="r"), DrawSpec(target=2)
    with counting(tmp_path / "model", latency_s=0.2) as engine, ThreadPoolExecutor(1) as trainer:
        engine.wrong = ".1"
        candidates = iter([group(f"g{number}", n=2) for number in range(2)])
        with service(engine, tmp_path, port=port) as running:
            client = RolloutClient(running.url)
            sampler = SamplerClient(client, "s", spec, candidates)
            drawing = trainer.submit(sampler.draw, "d", draw)
            while engine.calls < 12:
                time.sleep(0.01)
            running.process.send_signal(signal.SIGTERM)
            running.process.wait(WAIT_S)
        with service(engine, tmp_path, port=port), client:
            drawn, groups = drawing.result(WAIT_S)
    assert (drawn.state, len(groups), engine.calls) == (DrawState.COMPLETE, 2, 4 * TURNS)
    for rollout in (one for rollouts in groups for one in rollouts):
        assert_counted(rollout)
        assert len(rollout.resumed) == 1


@pytest.mark.harnesses
@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.sampled(1)
def test_a_harness_runs_again_and_gets_the_replies_that_it_had(
    tmp_path: Path, *, is_killed: bool
) -> None:
    """Its commands print something else this time, and it is another process."""
    port = port_to_come_back_to()
    data: dict[str, JsonValue] = {"answer": str(TURNS - 1), "answer_format": "plain"}
    given: dict[str, JsonValue] = {"harness": "pi", "agent": "math", "data": data}
    asked = group("g", n=2)
    asked.task.agent, asked.task.data = "harness", given
    with counting(tmp_path / "model", latency_s=0.2) as engine:
        engine.command = f"date +%N; {COMMAND}"
        with service(engine, tmp_path, port=port) as running, RolloutClient(running.url) as client:
            client.submit([asked])
            while engine.calls < 12:
                time.sleep(0.01)
            if is_killed:
                running.kill()
            else:
                running.process.send_signal(signal.SIGTERM)
                running.process.wait(WAIT_S)
        with service(engine, tmp_path, port=port) as running, RolloutClient(running.url) as client:
            ended = client.wait(ids_of([asked]), WAIT_S)
    # A kill loses each rollout's call in flight, and the turns of the last 250 ms, of 0.2 s each.
    lost = 3 * len(ended) if is_killed else 0
    assert engine.calls <= len(ended) * TURNS + lost
    for rollout in ended:
        assert_exact(rollout, engine)
        assert [output.split()[-1] for output in outputs(rollout)] == [
            str(number + 1) for number in range(TURNS - 1)
        ]
        [resumed] = rollout.resumed
        assert 0 < resumed.turn < TURNS
