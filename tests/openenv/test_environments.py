"""Rollouts in environments of real OpenEnv servers: rewards, ends, isolation, capacity."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_service.agents.openenv import OpenEnvAgent
from prorl_service.client.openenv import openenv_tasks
from prorl_service.errors import InvalidRequest
from prorl_service.schemas import (
    FinishReason,
    Limits,
    Message,
    Replay,
    Rollout,
    RolloutState,
    Start,
)
from prorl_service.testing import Reply, call, play
from prorl_service.testing.trial import rollouts
from prorl_service.tools.openenv.episode import Episode
from prorl_service.tools.openenv.servers import OpenEnvServers
from prorl_service.tools.spec import OpenEnvSpec
from prorl_service.utils.budget import WorkClock
from tests.openenv.playing import group, guesses, outputs, played, served, settings
from tests.openenv.processes import (
    GuessServer,
    Server,
    echo_server,
    guess_server,
    needs_openenv,
    ors_server,
)
from tests.parts import error_of, report_of, trajectory_of

pytestmark = [needs_openenv, pytest.mark.processes]


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with echo_server(tmp_path_factory.mktemp("echo")) as server:
        yield server


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with ors_server(tmp_path_factory.mktemp("sums")) as server:
        yield server


@pytest.fixture(scope="module")
def shared_guess(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuessServer]:
    with guess_server(tmp_path_factory.mktemp("guess")) as server:
        yield server


@pytest.fixture
def guess(shared_guess: GuessServer) -> GuessServer:
    shared_guess.forget()
    return shared_guess


def _reward(rollout: Rollout) -> float:
    assert rollout.reward is not None, rollout.error
    return rollout.reward


async def test_the_template_of_openenv_is_played(echo: Server) -> None:
    task = {
        "messages": [{"role": "user", "content": "Say something long."}],
        "data": {"server": "echo"},
    }
    replies: list[Reply] = [call("step", message="hi"), call("step", message="hello"), "Done."]
    result = await play(OpenEnvAgent, task, replies, settings=settings(f"echo={echo.url}"))
    assert result.reward == pytest.approx(0.7)
    assert result.finish_reason is FinishReason.FINISHED
    assert json.loads(result.outputs[0]) == {"echoed_message": "hi", "message_length": 2}
    [first, *_] = result.prompts
    assert 'Say something long.\n\n{"echoed_message": "Echo Env environment ready!"' in first
    assert '"message": {"description": "Message to echo back", "type": "string"}' in first
    assert "metadata" not in first
    assert result.rollout.report == {
        "server": "echo",
        "rewards": [pytest.approx(0.2), pytest.approx(0.5)],
        "steps": 2,
    }


async def test_an_episode_without_an_end_takes_all_turns(echo: Server) -> None:
    replies: list[Reply] = [call("step", message="x" * length) for length in (9, 3, 1)]
    limits = Limits(max_turns=2)
    ask = group(server="echo", reward="last", limits=limits)
    [rollout] = await played(settings(f"echo={echo.url}"), ask, [replies])
    assert trajectory_of(rollout).finish_reason is FinishReason.MAX_TURNS
    assert _reward(rollout) == pytest.approx(0.3)
    assert [turn.reward for turn in trajectory_of(rollout).turns] == [None, None]
    assert rollout.reward_components["step_1"] == pytest.approx(0.9)
    assert rollout.reward_components["done"] == 0


async def test_a_branch_steps_through_a_session_of_its_own(guess: GuessServer) -> None:
    ask = group(server="guess", reset={"seed": 7})
    async with served(settings(f"guess={guess.url}"), [guesses(3, 5)]) as (service, engine):
        await service.submit([ask])
        [first] = [one async for one in rollouts(service, ask)]
        start = Start(rollout_id=first.rollout_id, turns=1)
        branch = ask.model_copy(update={"group_id": "branch", "start": start})
        engine.give("branch", [guesses(7)])
        await service.submit([branch])
        [rollout] = [one async for one in rollouts(service, branch)]
        assert engine.prompts["branch.0"] == [engine.prompts["group.0"][1]]
    assert _reward(rollout) == 0.75
    assert rollout.replay == Replay(rollout_id="group.0", turns=1)
    assert [turn.reward for turn in trajectory_of(rollout).turns] == [-0.25, 1]


async def test_the_environment_ends_the_rollout(guess: GuessServer) -> None:
    ask = group(server="guess", reset={"seed": 7})
    [rollout] = await played(settings(f"guess={guess.url}"), ask, [guesses(3, 7, 5)])
    assert trajectory_of(rollout).finish_reason is FinishReason.FINISHED
    assert _reward(rollout) == 0.75
    assert [turn.reward for turn in trajectory_of(rollout).turns] == [-0.25, 1]
    assert [json.loads(one)["hint"] for one in outputs(rollout)] == ["wrong", "right"]
    assert rollout.reward_components == {
        "done": 1,
        "steps": 2,
        "invalid_actions": 0,
        "raised_errors": 0,
        "step_1": -0.25,
        "step_2": 1,
    }


async def test_a_turn_has_the_rewards_of_all_its_steps(guess: GuessServer) -> None:
    ask = group(server="guess", reset={"seed": 7})
    two = [call("step", number=number) for number in (1, 2)]
    both = Message(role="assistant", content="", tool_calls=[one.tool_calls[0] for one in two])
    script: list[Reply] = [both, *guesses(200, 96, 7)]
    [rollout] = await played(settings(f"guess={guess.url}"), ask, [script])
    assert [turn.reward for turn in trajectory_of(rollout).turns] == [-0.5, None, None, 1]
    assert _reward(rollout) == 0.5


async def test_invalid_actions_are_answered_and_cost_nothing_else(guess: GuessServer) -> None:
    ask = group(server="guess", reset={"seed": 7})
    scripts = [[call("step", number=200), call("step", numbr=1), call("fly"), *guesses(7)]]
    [rollout] = await played(settings(f"guess={guess.url}"), ask, scripts)
    high, misspelt, unknown, _ = outputs(rollout)
    assert high == "Invalid action: number: Input should be less than or equal to 100"
    assert "number: Field required; numbr: Extra inputs are not permitted" in misspelt
    assert "There is no tool 'fly'" in unknown
    assert _reward(rollout) == 1
    assert rollout.reward_components["invalid_actions"] == 2


async def test_text_that_cannot_be_sent_is_an_invalid_action(echo: Server) -> None:
    """OpenEnv would end the session."""
    async with OpenEnvServers([OpenEnvSpec("echo", echo.url)]) as servers:
        context = servers["echo"].session({}, clock=WorkClock(), timeout_s=60)
        async with context as (session, _):
            episode = Episode(session)
            half = await episode.call("step", {"message": "\ud800"}, timeout_s=60)
            assert half.output == "Invalid action: its text has half of a surrogate pair"
            assert not (await episode.call("step", {"message": "ok"}, timeout_s=60)).is_error
    assert episode.rewards == [pytest.approx(0.2)]


async def test_an_action_that_a_validator_of_the_environment_refuses_ends_the_episode(
    guess: GuessServer,
) -> None:
    """OpenEnv cannot write such a refusal, and ends the session."""
    ask = group(server="guess", reset={"seed": 7})
    [rollout] = await played(settings(f"guess={guess.url}"), ask, [guesses(3, 13, 7)])
    assert outputs(rollout)[1] == "Invalid action."
    assert _reward(rollout) == -0.25
    assert rollout.reward_components["invalid_actions"] == 1


async def test_an_error_of_the_environment_is_answered_and_does_not_end_it(
    guess: GuessServer,
) -> None:
    ask = group(server="guess", reset={"seed": 7})
    [rollout] = await played(settings(f"guess={guess.url}"), ask, [guesses(99, 3, 7)])
    assert outputs(rollout)[0] == "The environment raised: the dice are lost"
    assert _reward(rollout) == 0.75
    assert rollout.reward_components["raised_errors"] == 1


async def test_an_environment_that_only_raises_errors_is_not_scored(guess: GuessServer) -> None:
    ask = group(server="guess")
    [rollout] = await played(settings(f"guess={guess.url}"), ask, [guesses(99, 99)])
    assert (rollout.state, rollout.reward) == (RolloutState.FAILED, None)
    assert error_of(rollout).retryable
    assert "raised an error at every step: the dice are lost" in error_of(rollout).message


async def test_a_policy_that_does_not_act_is_scored_0(guess: GuessServer) -> None:
    ask = group(server="guess")
    [rollout] = await played(settings(f"guess={guess.url}"), ask, [["No."]])
    assert _reward(rollout) == 0


async def test_a_step_without_a_reward_counts_as_none(guess: GuessServer) -> None:
    ask = group(server="guess", reward="last")
    [rollout] = await played(settings(f"guess={guess.url}"), ask, [guesses(3, 96)])
    assert _reward(rollout) == -0.25
    assert report_of(rollout)["rewards"] == [-0.25, None]


async def test_parallel_rollouts_have_sessions_of_their_own(guess: GuessServer) -> None:
    ask = group(16, server="guess", reset={"seed": 90})
    scripts = [guesses(number, number + 20, number + 40) for number in range(14, 30)]
    ended = await played(settings(f"guess={guess.url}"), ask, scripts)
    assert [_reward(rollout) for rollout in ended] == [-0.75] * 16
    for number, rollout in enumerate(ended, 14):
        own = [number, number + 20, number + 40]
        assert json.loads(outputs(rollout)[-1])["guesses"] == own
        episodes = {line[1] for line in guess.saw() if line[2:] in [[str(one)] for one in own]}
        assert rollout.rollout_id in episodes
    assert guess.count("reset") == guess.count("close") == 16


async def test_a_full_server_is_waited_for(tmp_path: Path) -> None:
    with guess_server(tmp_path, sessions=3) as server:
        ask = group(12, server="guess", reset={"seed": 7}, limits=Limits(init_timeout_s=20))
        ended = await played(settings(f"guess={server.url}"), ask, [guesses(3, 7)])
        assert [_reward(rollout) for rollout in ended] == [0.75] * 12
        assert [rollout.attempt for rollout in ended] == [1] * 12
        assert server.most_sessions() <= 3


async def test_a_server_that_stays_full_fails_the_rollout_and_a_retry_may_help(
    echo: Server,
) -> None:
    """The template has room for one session, which another client holds."""
    from websockets.asyncio.client import connect

    async with connect(f"ws{echo.url.removeprefix('http')}/ws") as other:
        await other.send('{"type": "reset", "data": {}}')
        await other.recv()
        [rollout] = await played(
            settings(f"echo={echo.url}", wait_s=0.5), group(server="echo"), [["Hi."]]
        )
    assert (rollout.state, rollout.reward) == (RolloutState.FAILED, None)
    assert error_of(rollout).retryable
    assert "had no session within 0.5 s: Server at capacity: 1/1" in error_of(rollout).message


async def test_an_import_of_openenv_is_played_by_its_own_tools(sums: Server) -> None:
    ask = group(server="sums", reset={"split": "train", "index": 3})
    replies: list[Reply] = [call("answer", number=8), call("answer", number=9)]
    async with served(settings(f"sums={sums.url}"), [replies]) as (service, engine):
        await service.submit([ask])
        [rollout] = [one async for one in rollouts(service, ask)]
        prompt = engine.chat.decode(engine.prompts[rollout.rollout_id][0])
    assert _reward(rollout) == 1
    assert outputs(rollout)[0] == "8 is wrong"
    assert rollout.reward_components["done"] == 1
    assert "Begin.\n\nWhat is 4 + 5?" in prompt
    assert "Give your answer. The third is the last." in prompt
    assert '"sum"' not in prompt


async def test_tasks_are_made_of_those_that_a_server_lists(
    sums: Server, guess: GuessServer, echo: Server
) -> None:
    def lists(url: str, split: str) -> list[str]:
        tasks = openenv_tasks(
            url, server="one", split=split, start=1, instruction=lambda one: f"Solve {one}."
        )
        assert tasks[0].data == {"server": "one", "reset": {"split": split, "index": 1}}
        return [task.messages[0].content for task in tasks]

    assert await asyncio.to_thread(lists, guess.url, "test") == ["Solve {'question': 'test 1'}."]
    assert len(await asyncio.to_thread(lists, sums.url, "train")) == 5
    with pytest.raises(InvalidRequest, match="no split 'dev'") as caught:
        await asyncio.to_thread(lists, guess.url, "dev")
    assert caught.value.hint == "it has train, test"
    with pytest.raises(InvalidRequest, match="lists no tasks"):
        await asyncio.to_thread(lists, echo.url, "train")


async def test_rollouts_of_listed_tasks_get_their_own_task(sums: Server) -> None:
    [_, task] = await asyncio.to_thread(openenv_tasks, sums.url, server="sums", stop=2)
    ask = group(server="sums").model_copy(update={"task": task})
    [rollout] = await played(settings(f"sums={sums.url}"), ask, [[call("answer", number=5)]])
    assert _reward(rollout) == 1
