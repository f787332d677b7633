"""Rows with a rubric over HTTP: graded by the operator's judges, and refused without any."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.rewards.judge.judge import JudgeConfig
from prorl_service.schemas import BackendSpec, Blame, Group, Limits, Rollout, RolloutState
from prorl_service.testing import StubEngine, StubJudge
from prorl_service.tokens.chat import ChatFormat
from tests import builders
from tests.parts import error_of, report_of
from tests.rewards.test_rubric import honest
from tests.server.application import Settings, finished, serving

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("at_once")]

QUESTION = "How is the weather?"
RUBRIC = [
    {"criterion": "It says rain.", "weight": 3, "name": "rain"},
    {"criterion": "It says wind."},
    {"criterion": "It says nonsense.", "weight": -2},
]


@asynccontextmanager
async def weather_service(
    tiny_model: Path, chat: ChatFormat, reply: Callable[[], str], judge: JudgeConfig | None
) -> AsyncIterator[AsyncRolloutClient]:
    def answer(prompt: list[int]) -> list[int]:
        return [*chat.encode(reply()), chat.end_of_turn_id]

    async with StubEngine(tiny_model, answer) as engine:
        settings = Settings(backends=(BackendSpec(url=engine.url),), sandbox="process", judge=judge)
        async with serving(settings) as url, AsyncRolloutClient(url) as client:
            yield client


def weather(name: str, n: int = 1, limits: Limits = Limits(), **data: Any) -> Group:
    given = {"rubric": RUBRIC, **data}
    task = builders.task("weather", QUESTION, agent="rubric", data=given)
    return Group(group_id=name, task=task, n=n, limits=limits)


def scores(rollout: Rollout) -> list[float]:
    assert rollout.state is RolloutState.DONE, rollout.error
    assert list(rollout.reward_components) == ["rain", "criterion_2", "criterion_3", "answered"]
    return [*rollout.reward_components.values()]


async def test_each_criterion_has_a_component_and_siblings_cost_one_call_a_judge(
    tiny_model: Path, chat: ChatFormat
) -> None:
    async with StubJudge(honest) as judge:
        config = JudgeConfig(judge.url, ["one", "two"])
        said = iter(["rain and nonsense"] * 3 + ["rain, wind"])
        async with weather_service(tiny_model, chat, lambda: next(said), config) as client:
            siblings = await finished(client, weather("g", n=3, reference="It rains."))
            (other,) = await finished(client, weather("h"))
    for rollout in siblings:
        assert scores(rollout) == [1, 0, 1, 1]
        assert rollout.reward == pytest.approx((3 - 2) / 4)
        met = [True, False, True]
        assert report_of(rollout) == {"judges": {"one": met, "two": met}}
    assert scores(other) == [1, 1, 0, 1]
    assert other.reward == 1
    assert len(judge.requests) == 4


async def test_no_answer_meets_no_criterion_and_asks_nobody(
    tiny_model: Path, chat: ChatFormat
) -> None:
    async with StubJudge(honest) as judge:
        config = JudgeConfig(judge.url, ["one"])
        calls = '<tool_call>\n{"name": "bash", "arguments": {"command": "echo rain"}}\n</tool_call>'
        async with weather_service(tiny_model, chat, lambda: calls, config) as client:
            group = weather("g", limits=Limits(max_turns=2), tools=["bash"])
            (rollout,) = await finished(client, group)
    assert scores(rollout) == [0, 0, 0, 0]
    assert rollout.reward == 0
    assert judge.requests == []


async def test_a_judge_that_fails_is_the_evaluators_fault_and_no_score(
    tiny_model: Path, chat: ChatFormat
) -> None:
    async with StubJudge(lambda messages: "It is fine.") as judge:
        config = JudgeConfig(judge.url, ["one"])
        async with weather_service(tiny_model, chat, lambda: "rain", config) as client:
            (rollout,) = await finished(client, weather("g"))
    assert (rollout.state, rollout.reward) == (RolloutState.FAILED, None)
    assert (error_of(rollout).kind, error_of(rollout).blame) == ("EvaluatorError", Blame.EVALUATOR)
    assert rollout.reward_components == {}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "needs a judge"),
    ({"rubric": []}, r"data\.rubric: List should have at least 1 item"),
    ({"rubric": [{"criterion": "x", "weight": -1}]}, r"data\.rubric: give at least one"),
    ({"rubric": [{"criteria": "x"}]}, r"data\.rubric\.0\.criterion: Field required"),
]


async def test_rows_that_cannot_be_graded_are_refused(tiny_model: Path, chat: ChatFormat) -> None:
    async with weather_service(tiny_model, chat, lambda: "rain", None) as client:
        for data, problem in REFUSED:
            with pytest.raises(ServiceCallError, match=f"422 InvalidRequest: .*{problem}"):
                await client.submit([weather("g", **data)])
