"""Rows of NeMo Gym's wheel at its own servers, by a real service with scripted replies."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from prorl_service.agents.nemo_gym.agent import NemoGymAgent
from prorl_service.agents.registry import AgentRegistry
from prorl_service.schemas import Blame, Group, Message, RolloutState, Stage, Task
from prorl_service.schemas.groups import FunctionCall, MessageCall
from prorl_service.testing import Played, Reply, call, play
from prorl_service.testing.scripted_engine import scripted_engine
from prorl_service.testing.trial import rollouts, trial_service
from tests.agents.nemo_gym import gym_servers
from tests.agents.nemo_gym.gym_servers import COUNTER, MULTI_REWARD, REASONING, SYNONYMS, WEATHER

pytestmark = [pytest.mark.processes, gym_servers.NEEDED]


def calls(*wanted: tuple[str, dict[str, Any]]) -> Message:
    """Returns a reply that makes several calls."""
    made = [
        MessageCall(id=f"call{number:05}", function=FunctionCall(name=name, arguments=arguments))
        for number, (name, arguments) in enumerate(wanted)
    ]
    return Message(role="assistant", content="", tool_calls=made)


async def played(
    gyms: Mapping[str, str], name: str, *replies: Reply, task: Task | None = None
) -> Played:
    task = task or gym_servers.tasks_of(name)[0]
    return await play(NemoGymAgent, task, replies, settings=gym_servers.settings(**gyms))


# --- each server's own reward -------------------------------------------------------------------


async def test_a_call_of_the_tool_is_right(gyms: dict[str, str]) -> None:
    right = await played(gyms, WEATHER, call("get_weather", city="SF"), "Cold.")
    assert right.outputs == ['{"city":"SF","weather_description":"The weather in SF is cold."}']
    assert right.reward == 1.0
    assert (await played(gyms, WEATHER, "I do not know.")).reward == 0.0


async def test_values_are_looked_up_and_extracted_in_order(gyms: dict[str, str]) -> None:
    looked_up: list[Reply] = [
        call("get_synonym_value", synonym="Blazing"),
        call("get_synonym_value", synonym="Warm"),
    ]
    right = await played(
        gyms, SYNONYMS, *looked_up, call("extract_synonym_values", synonym_values=[711, 407]), "Ok."
    )
    assert right.outputs == ['{"synonym_value":711}', '{"synonym_value":407}', '{"success":true}']
    assert (right.reward, right.rollout.reward_components["set_overlap"]) == (1.0, 1.0)
    swapped = await played(
        gyms, SYNONYMS, *looked_up, call("extract_synonym_values", synonym_values=[407, 711]), "Ok."
    )
    assert swapped.reward == 0.0
    assert swapped.rollout.reward_components == {
        "accuracy": 0.0,
        "set_overlap": 1.0,
        "original_term_minefield_hit": 0.0,
        "order_instruction_following_failure": 1.0,
    }
    report = swapped.rollout.report
    assert report is not None
    assert report["verdict"] == {
        **{name: bool(value) for name, value in swapped.rollout.reward_components.items()},
        "set_overlap": 1.0,
        "parsed_synonym_values": [407, 711],
    }


async def test_a_session_counts_from_the_rows_start(gyms: dict[str, str]) -> None:
    both = calls(("increment_counter", {"count": 1}), ("increment_counter", {"count": 2}))
    right = await played(gyms, COUNTER, both, call("get_counter_value"), "It is 6.")
    assert right.outputs == ['{"success":true}', '{"success":true}', '{"count":6}']
    assert right.reward == 1.0
    wrong = await played(gyms, COUNTER, call("increment_counter", count=2), "It is 5.")
    assert wrong.reward == 0.0


async def test_an_answer_is_scored_by_its_data_sets_rule(gyms: dict[str, str]) -> None:
    task = gym_servers.tasks_of(REASONING)[0]
    row = task.data["row"]
    assert isinstance(row, dict)
    right = await played(gyms, REASONING, f"<think>?</think><answer>{row['answer']}</answer>")
    wrong = await played(gyms, REASONING, "<answer>Zoey is a fool.</answer>")
    assert right.reward == right.rollout.reward_components["score"] == 1.0
    assert wrong.reward < 1.0


async def test_several_rewards_are_components(gyms: dict[str, str]) -> None:
    components = {"correctness": 1.0, "schema_valid": 1.0, "format": 0.0}
    right = await played(gyms, MULTI_REWARD, call("get_weather", city="San Francisco"), "Sunny.")
    assert (right.reward, right.rollout.reward_components) == (2.0, components)


# --- what the model and the verifier see --------------------------------------------------------


async def test_errors_of_tools_reach_the_model_as_the_server_says_them(
    gyms: dict[str, str],
) -> None:
    wrong = await played(gyms, COUNTER, call("increment_counter", count="two"), "Hm.")
    (problem,) = json.loads(wrong.outputs[0])["detail"]
    assert (problem["type"], problem["loc"]) == ("int_parsing", ["body", "count"])
    assert wrong.turns[0].tool_calls[0].is_error
    assert wrong.outputs[0] in wrong.prompts[1]


async def test_tools_that_the_row_does_not_offer_are_not_called(gyms: dict[str, str]) -> None:
    asked: list[Reply] = [call("verify"), call("../verify", reward=1), call("seed_session"), "Hm."]
    denied = await played(gyms, COUNTER, *asked)
    known = "Tools: increment_counter, get_counter_value."
    assert denied.outputs == [
        f"There is no tool {name!r}. {known}" for name in ("verify", "../verify", "seed_session")
    ]


async def test_a_verifier_that_fails_gives_no_reward(gyms: dict[str, str]) -> None:
    broken = await played(gyms, SYNONYMS, call("extract_synonym_values", values=[1]), "Ok.")
    error = broken.rollout.error
    assert error is not None
    assert (error.blame, error.stage, error.retryable) == (Blame.EVALUATOR, Stage.EVAL, False)
    assert "verifier_error in verification: status 500: \"KeyError('synonym_values')\"" in (
        error.message
    )
    assert (broken.rollout.state, broken.rollout.reward) == (RolloutState.FAILED, None)


async def test_a_row_of_another_server_is_the_tasks_fault(gyms: dict[str, str]) -> None:
    row = gym_servers.tasks_of(WEATHER)[0]
    task = row.model_copy(update={"data": {**row.data, "server": COUNTER}})
    refused = await played(gyms, COUNTER, "Hm.", task=task)
    error = refused.rollout.error
    assert error is not None
    assert (error.blame, error.stage, error.retryable) == (Blame.TASK, Stage.INIT, False)
    assert "initial_count" in error.message


# --- sessions -----------------------------------------------------------------------------------


async def test_sixteen_sessions_at_a_time_do_not_mix(gyms: dict[str, str]) -> None:
    tasks = gym_servers.tasks_of(COUNTER)[:4]
    groups = [Group(group_id=f"g{place}", task=task, n=4) for place, task in enumerate(tasks)]
    # Siblings 1 and 3 add too little.
    scripts: list[list[Reply]] = [
        [*[call("increment_counter", count=1)] * times, call("get_counter_value"), "Done."]
        for times in (3, 2, 3, 1)
    ]
    async with (
        scripted_engine(scripts) as engine,
        trial_service(
            AgentRegistry(), [engine.spec], gym_servers.settings(**gyms), parallel=16
        ) as service,
    ):
        engine.latency_s = 0.05
        await service.submit(groups)
        ended = [one for group in groups async for one in rollouts(service, group)]
        assert engine.most_in_flight >= 12
    assert all(one.state is RolloutState.DONE for one in ended)
    first = [one for one in ended if one.group_id == "g0"]
    assert {one.index: one.reward for one in first} == {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0}
    counted = {
        (one.group_id, one.index): json.loads(one.trajectory.turns[-2].tool_calls[0].output)
        for one in ended
        if one.trajectory is not None
    }
    assert counted == {
        (f"g{place}", index): {"count": start + added}
        for place, start in enumerate((3, 6, 9, 12))
        for index, added in enumerate((3, 2, 3, 1))
    }
