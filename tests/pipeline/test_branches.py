"""Rollouts that begin with turns of another one: its tokens, masked, and its files."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from prorl_service.agents.registry import AgentRegistry
from prorl_service.client.harness import with_program
from prorl_service.errors import Conflict, InvalidRequest
from prorl_service.schemas import (
    NOT_SAMPLED,
    Blame,
    Group,
    Limits,
    Message,
    Rollout,
    RolloutState,
    Start,
    Task,
    Trajectory,
)
from prorl_service.server.service import Service
from prorl_service.server.settings import ServiceSettings
from prorl_service.testing.replies import Reply, call
from prorl_service.testing.scripted_engine import ScriptedEngine, scripted_engine
from prorl_service.testing.trial import rollouts, trial_service

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ANSWER = "\\boxed{42}"
TWO_CALLS: list[Reply] = [call("bash", command="echo 1"), call("bash", command="echo 2"), "No."]


def task(tool: str = "bash") -> Task:
    question = Message(role="user", content="What is 6 * 7?")
    data = {"answer": "42", "tools": [tool]}
    return Task(task_id="t", agent="math", messages=[question], data=data)


@dataclass(frozen=True)
class Trial:
    engine: ScriptedEngine
    service: Service
    numbers: Iterator[int]

    async def played(
        self, replies: Sequence[Reply], start: Start | None = None, of: Task | None = None
    ) -> Rollout:
        """Returns a rollout whose policy gives these replies after the turns of `start`."""
        name = f"g{next(self.numbers)}"
        self.engine.give(name, [replies])
        limits = Limits(max_turns=64)
        group = Group(group_id=name, task=of or task(), start=start, limits=limits)
        await self.service.submit([group])
        [rollout] = [one async for one in rollouts(self.service, group)]
        assert self.engine.unused_replies(rollout.rollout_id) == 0
        return rollout


@asynccontextmanager
async def trial() -> AsyncIterator[Trial]:
    settings = ServiceSettings()
    settings = replace(settings, sandboxes=replace(settings.sandboxes, sandbox="bubblewrap"))
    async with (
        scripted_engine([]) as engine,
        trial_service(AgentRegistry(), [engine.spec], settings) as service,
    ):
        yield Trial(engine, service, count())


def trajectory(rollout: Rollout) -> Trajectory:
    assert rollout.state is RolloutState.DONE, rollout.error
    assert rollout.trajectory is not None
    return rollout.trajectory


def start(rollout: Rollout, turns: int) -> Start:
    return Start(rollout_id=rollout.rollout_id, turns=turns)


def outputs(rollout: Rollout) -> list[str]:
    return [one.output for turn in trajectory(rollout).turns for one in turn.tool_calls]


def assert_continues(trial: Trial, rollout: Rollout, other: Rollout, turns: int) -> None:
    """Its first call had the very prompt of the other's turn, and nothing before it is trained."""
    then = trajectory(other).turns[turns]
    now = trajectory(rollout)
    chain = trajectory(other).segments[then.segment]
    seen = chain.prompt_ids + chain.response_ids[: then.start]
    assert trial.engine.prompts[rollout.rollout_id][0] == seen
    segment, first = now.segments[then.segment], now.turns[turns]
    assert first.start == then.start
    assert segment.prompt_ids + segment.response_ids[: first.start] == seen
    assert not any(segment.loss_mask[: first.start])
    assert set(segment.policy_versions[: first.start]) <= {NOT_SAMPLED}
    sampled = sum(turn.stop - turn.start for turn in now.turns[turns:])
    assert sum(segment.loss_mask) == sampled
    assert rollout.figures is not None
    assert rollout.figures.sampled_tokens == sampled
    assert [turn.is_replayed for turn in now.turns] == [
        number < turns for number in range(len(now.turns))
    ]
    assert rollout.replay is not None
    assert (rollout.replay.rollout_id, rollout.replay.turns) == (other.rollout_id, turns)


async def test_a_branch_has_the_tokens_and_the_files_of_its_turn() -> None:
    async with trial() as one:
        commands = ["echo 1 > a", "echo 2 >> a; cd /tmp; X=7", "echo 3 >> ~/a", "rm -f a"]
        first = await one.played([*(call("bash", command=c) for c in commands), "No."])
        looks = call("bash", command="cat ~/a; pwd; echo $X")
        branch = await one.played([looks, ANSWER], start(first, 2))
        assert_continues(one, branch, first, 2)
        assert outputs(branch)[-1].split() == ["1", "2", "/tmp", "7"]
        assert branch.reward == 1
        assert branch.replay is not None
        assert branch.replay.differing == 0


async def test_a_kernel_has_its_variables() -> None:
    async with trial() as one:
        replies: list[Reply] = [
            call("ipython", code="x = 40"),
            call("ipython", code="x += 1"),
            "No.",
        ]
        first = await one.played(replies, of=task("ipython"))
        looks = call("ipython", code="print(x + 2)")
        branch = await one.played([looks, ANSWER], start(first, 1), of=task("ipython"))
        assert_continues(one, branch, first, 1)
        assert outputs(branch)[-1].strip() == "42"


async def test_the_policy_sees_the_results_of_then() -> None:
    async with trial() as one:
        odd = call("bash", command="cat /proc/sys/kernel/random/uuid")
        first = await one.played([odd, call("bash", command="echo same"), odd, "No."])
        branch = await one.played([ANSWER], start(first, 2))
        assert_continues(one, branch, first, 2)
        assert outputs(branch) == outputs(first)[:2]
        assert branch.replay is not None
        assert branch.replay.differing == 1
        assert [turn.results_differ for turn in trajectory(branch).turns] == [True, False, False]


async def test_a_trajectory_of_another_service_will_do() -> None:
    async with trial() as there, trial() as here:
        writes = [call("bash", command=f"echo {number} >> a") for number in range(3)]
        first = await there.played([*writes, "No."])
        given = Start(rollout_id=first.rollout_id, turns=2, trajectory=first.trajectory)
        branch = await here.played([call("bash", command="cat a"), ANSWER], given)
        assert_continues(here, branch, first, 2)
        assert outputs(branch)[-1].split() == ["0", "1"]


PROGRAM = """
import json, os, subprocess, urllib.request

TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
messages = [{"role": "user", "content": "What is 6 * 7?"}]
while True:
    asked = {"model": "policy", "messages": messages, "tools": [TOOL]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(asked).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(message)
    if not message.get("tool_calls"):
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        output = subprocess.run(command, shell=True, capture_output=True, text=True).stdout
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
"""


async def test_a_program_of_ones_own_begins_so_too() -> None:
    async with trial() as one:
        asked = with_program(task(), PROGRAM)
        odd = call("bash", command="date +%s%N >> a; tail -n 1 a")
        first = await one.played([odd, odd, call("bash", command="rm a"), "No."], of=asked)
        looks = call("bash", command="wc -l < a")
        branch = await one.played([looks, ANSWER], start(first, 2), of=asked)
        assert_continues(one, branch, first, 2)
        assert outputs(branch)[:2] == outputs(first)[:2]
        assert outputs(branch)[-1].strip() == "2"
        assert branch.replay is not None
        assert branch.replay.differing == 2
        other = with_program(task(), PROGRAM.replace("What is 6 * 7?", "What is 7 * 6?"))
        refused = await one.played([], start(first, 2), of=other)
        assert refused.error is not None
        assert refused.error.blame is Blame.TASK
        assert "after 0 of them its agent asked for something else" in refused.error.message


async def test_a_branch_of_a_branch_has_the_turns_of_both() -> None:
    async with trial() as one:
        first = await one.played([call("bash", command="echo 1 >> a"), "No."])
        second = await one.played([call("bash", command="echo 2 >> a"), "No."], start(first, 1))
        third = await one.played([call("bash", command="cat a"), ANSWER], start(second, 2))
        assert_continues(one, third, second, 2)
        assert outputs(third)[-1].split() == ["1", "2"]


@given(st.data())
@settings(max_examples=4)
def test_every_node_of_a_tree_has_the_files_of_its_path(data: st.DataObject) -> None:
    asyncio.run(_grow(data))


async def _grow(data: st.DataObject) -> None:
    async with trial() as one:
        grown: list[tuple[Rollout, list[str]]] = []
        for number in range(data.draw(st.integers(2, 8), "rollouts")):
            words = [f"{number}-{turn}" for turn in range(data.draw(st.integers(1, 4), "turns"))]
            path, begun = list[str](), None
            parent = data.draw(st.sampled_from([None, *range(number)]), "parent")
            if parent is not None:
                other, written = grown[parent]
                turns = data.draw(st.integers(1, len(written)), "of its turns")
                path, begun = written[:turns], start(other, turns)
            calls = [call("bash", command=f"echo {word} >> a; cat a") for word in words]
            rollout = await one.played([*calls, ANSWER], begun)
            if parent is not None:
                assert_continues(one, rollout, other, turns)
            path = [*path, *words]
            assert outputs(rollout)[-1].split() == path
            grown.append((rollout, path))


async def test_turns_that_cannot_be_replayed_fail_the_rollout() -> None:
    """The agent ends at a reply of then, since its first line is not what it was."""
    async with trial() as one:
        found = trajectory(await one.played(TWO_CALLS))
        answer = trajectory(await one.played([ANSWER]))
        ids = answer.segments[0].response_ids
        first, *others = found.turns
        moved = len(ids) - first.stop
        turns = [first.model_copy(update={"stop": len(ids)})]
        turns += [
            turn.model_copy(update={"start": turn.start + moved, "stop": turn.stop + moved})
            for turn in others
        ]
        segment = found.segments[0].model_copy(deep=True)
        for name in ("response_ids", "loss_mask", "logprobs", "policy_versions"):
            now = getattr(answer.segments[0], name) + getattr(segment, name)[first.stop :]
            setattr(segment, name, now)
        text = answer.turns[0].text
        turns[0] = turns[0].model_copy(update={"text": text})
        forged = found.model_copy(update={"segments": [segment], "turns": turns})
        rollout = await one.played([], Start(turns=2, trajectory=forged))
        assert rollout.state is RolloutState.FAILED
        assert rollout.error is not None
        assert rollout.error.blame is Blame.TASK
        assert (
            "after 1 of them its agent asked for something else than then" in rollout.error.message
        )


REFUSED = {
    "another task": ({"of": "another"}, "it began with another prompt"),
    "an unknown rollout": (
        {"rollout_id": "nobody.0"},
        "of the rollout 'nobody.0' are not here",
    ),
    "all its turns": ({"turns": 3}, "turns is 3, and must be less than its 3 turns"),
    "as many turns as allowed": ({"most": 2}, "2 turns leave none of `limits.max_turns`"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
async def test_what_cannot_begin_is_refused_at_once(changes: dict[str, Any], message: str) -> None:
    async with trial() as one:
        rollout_id = (await one.played(TWO_CALLS)).rollout_id
        begun = Start(
            rollout_id=changes.get("rollout_id", rollout_id), turns=changes.get("turns", 2)
        )
        asked = task()
        if "of" in changes:
            asked = asked.model_copy(update={"messages": [Message(role="user", content="Hm?")]})
        limits = Limits(max_turns=changes.get("most", 16))
        group = Group(group_id="refused", task=asked, start=begun, limits=limits)
        with pytest.raises(InvalidRequest, match=re.escape(message)):
            await one.service.submit([group])


@pytest.mark.parametrize(
    "forge",
    [
        {"segment": 7},
        {"segment": -1},
        {"start": -3},
        {"start": 10**6},
        {"stop": 10**6},
    ],
    ids=str,
)
async def test_a_trajectory_without_sense_is_refused(forge: dict[str, int]) -> None:
    async with trial() as one:
        found = trajectory(await one.played([call("bash", command="echo 1"), "No."]))
        found.turns[0] = found.turns[0].model_copy(update=forge)
        with pytest.raises(ValidationError, match="turn 0 lies outside"):
            Start(turns=1, trajectory=found)


async def test_tokens_that_the_model_does_not_have_are_refused() -> None:
    async with trial() as one:
        found = trajectory(await one.played([call("bash", command="echo 1"), "No."]))
        found.segments[0].response_ids[3] = -5
        group = Group(group_id="g", task=task(), start=Start(turns=1, trajectory=found))
        with pytest.raises(InvalidRequest, match="it has tokens of no vocabulary and no picture"):
            await one.service.submit([group])


async def test_a_group_is_the_same_with_and_without_its_trajectory() -> None:
    async with trial() as one:
        first = await one.played([call("bash", command="echo 1"), "No."])
        one.engine.give("again", [[ANSWER]])
        named = Group(group_id="again", task=task(), start=start(first, 1))
        given = Start(rollout_id=first.rollout_id, turns=1, trajectory=first.trajectory)
        found = named.model_copy(update={"start": given})
        await one.service.submit([found])
        await one.service.submit([named])
        with pytest.raises(Conflict):
            await one.service.submit([Group(group_id="again", task=task())])
