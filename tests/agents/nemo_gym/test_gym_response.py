"""The Responses object that verifiers get: what NeMo Gym's own class reads in it."""

import json
from typing import Any

import pytest

from prorl_service.agents.nemo_gym.response import Step, response
from prorl_service.schemas import ToolCallRecord
from prorl_service.schemas.rollouts import StopReason
from prorl_service.tokens.formats import Reply
from tests import builders
from tests.agents.nemo_gym import gym_servers

TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]


def step(
    content: str = "",
    reasoning: str = "",
    calls: tuple[str, ...] = (),
    stop: StopReason = "stop",
) -> Step:
    records = [ToolCallRecord(name=name, arguments={"n": 1}, output=f"{name}!") for name in calls]
    turn = builders.turn(
        stop=7, finish_reason=stop, tool_calls=records, cached_tokens=2, started_at=12.5
    )
    return Step(turn, Reply(content, reasoning), prompt_tokens=10)


def made(*steps: Step, **parameters: Any) -> dict[str, Any]:
    given = {"input": "Hi", "tools": TOOLS, **parameters}
    return response(steps, given, rollout_id="g.0", model="policy")


TWO_TURNS = (step("Let me see.", "Hm", ("look", "look")), step("It is so."))


def test_items_come_in_the_order_of_the_conversation() -> None:
    output = made(*TWO_TURNS)["output"]
    assert [item["type"] for item in output] == [
        *("reasoning", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "message"),
    ]
    first, second = output[2]["call_id"], output[3]["call_id"]
    assert first != second
    assert [item["call_id"] for item in output[4:6]] == [first, second]
    assert json.loads(output[2]["arguments"]) == {"n": 1}
    ids = [item["id"] for item in output if "id" in item]
    assert len(set(ids)) == len(ids)


def test_tokens_are_summed_over_the_calls() -> None:
    usage = made(*TWO_TURNS)["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (20, 14, 34)
    assert usage["input_tokens_details"] == {"cached_tokens": 4}


def test_a_call_alone_has_no_message_and_an_empty_reply_has_one() -> None:
    assert [item["type"] for item in made(step(calls=("look",)))["output"]] == [
        "function_call",
        "function_call_output",
    ]
    (item,) = made(step())["output"]
    assert item["content"][0]["text"] == ""


def test_a_reply_cut_at_its_limit_is_incomplete() -> None:
    cut = made(step("So"), step("It i", stop="length"))
    assert (cut["status"], cut["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert made(step("It i", stop="length"), step("So"))["status"] == "completed"


def test_parameters_are_repeated() -> None:
    echoed = made(step("So"), temperature=0.5, parallel_tool_calls=False, model="theirs")
    assert (echoed["temperature"], echoed["parallel_tool_calls"]) == (0.5, False)
    assert echoed["model"] == "theirs"
    assert "top_p" not in echoed


@gym_servers.NEEDED
@pytest.mark.processes
@pytest.mark.slow
def test_nemo_gyms_own_class_reads_it() -> None:
    read = gym_servers.checked_by_the_wheel(made(*TWO_TURNS))
    assert read.returncode == 0, read.stderr[-2000:]
    assert read.stdout.split() == [
        *("['NeMoGymResponseReasoningItem',", "'NeMoGymResponseOutputMessage',"),
        *("'NeMoGymResponseFunctionToolCall',", "'NeMoGymResponseFunctionToolCall',"),
        *("'NeMoGymFunctionCallOutput',", "'NeMoGymFunctionCallOutput',"),
        *("'NeMoGymResponseOutputMessage']", "Let", "me", "see.It", "is", "so.", "34"),
    ]
