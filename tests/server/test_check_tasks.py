"""`POST /v1/tasks/check` against what a submission refuses, and what a refusal says of a task."""

from collections import defaultdict
from collections.abc import AsyncIterator
from itertools import product
from typing import Any, ClassVar

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from prorl_service.client import AsyncRolloutClient, ServiceCallError
from prorl_service.errors import field_problems
from prorl_service.schemas import BackendSpec, Group, Sampling, Task
from prorl_service.schemas.base import MAX_CHECKS_PER_REQUEST
from prorl_service.testing import StubEngine
from tests.server.application import Settings, serving
from tests.server.scored_agent import SCORED, Scored


class LedgerData(BaseModel):
    answer: str


class Ledger(Scored):
    """An agent of a user's own, with a schema."""

    name: ClassVar[str] = "ledger"
    data_model: ClassVar[type[BaseModel] | None] = LedgerData

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        if task.data.get("answer") == "raise":
            raise KeyError("gold")
        LedgerData.model_validate(task.data)


@pytest.fixture
async def url(engine: StubEngine) -> AsyncIterator[str]:
    agents = (SCORED, "tests.server.test_check_tasks:Ledger")
    settings = Settings(backends=(BackendSpec(url=engine.url),), sandbox="process", agents=agents)
    async with serving(settings) as address:
        yield address


def ledger(task_id: object = "q03", **fields: Any) -> dict[str, Any]:
    return {
        "task_id": task_id,
        "agent": "ledger",
        "messages": [{"role": "user", "content": "How much?"}],
        "data": {"answer": "12"},
        **fields,
    }


MESSAGES: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "How much?"}],
    [{"role": "king", "content": "How much?"}],
    [{"role": "user", "content": "how much " * 3000}],
    [],
]
DATA: list[Any] = [{"answer": "12"}, {"answer": 12}, {}, {"answer": "raise"}, {"anwser": "1"}, []]
AGENTS = ["ledger", "scored", "math", "stranger"]
TASKS = [
    ledger(f"q{number}", agent=agent, messages=messages, data=data, image=image)
    for number, (agent, messages, data, image) in enumerate(
        product(AGENTS, MESSAGES, DATA, [None, "ubuntu:24.04"])
    )
]
"""Every combination of good and bad parts of a task."""


async def refused(client: AsyncRolloutClient, task: dict[str, Any]) -> set[tuple[str, str]]:
    """Returns fields and messages with which a submission of the task alone is refused."""
    try:
        group = Group(group_id=task["task_id"], task=Task.model_validate(task))
    except ValidationError as error:
        return {(one.field, one.message) for one in field_problems(error)}
    if (refusal := await refusal_of(client, group)) is None:
        return set()
    assert f"task {task['task_id']}: " in str(refusal)
    assert "groups." not in str(refusal)
    found = {(one.field.split(".", 3)[-1], one.message) for one in refusal.fields}
    return found or {("", refusal.error.message.partition(": ")[2])}


async def refusal_of(client: AsyncRolloutClient, group: Group) -> ServiceCallError | None:
    try:
        await client.submit([group])
    except ServiceCallError as refusal:
        return refusal
    await client.cancel(group.rollout_ids())
    await client.acknowledge([group.group_id])
    return None


async def test_the_check_finds_what_a_submission_refuses_and_submits_nothing(
    client: AsyncRolloutClient,
) -> None:
    problems = await client.check_tasks(TASKS)
    assert (await client.status()).rollouts == {}
    found: defaultdict[int, set[tuple[str, str]]] = defaultdict(set)
    for one in problems:
        assert one.task_id == TASKS[one.index]["task_id"]
        found[one.index].add((one.field, one.message))
    for index, task in enumerate(TASKS):
        assert found[index] == await refused(client, task), task
    bad = [task for index, task in enumerate(TASKS) if found[index]]
    assert 0 < len(bad) < len(TASKS)
    assert [one.index for one in problems] == sorted(one.index for one in problems)


async def test_a_value_that_is_no_task_at_all_is_a_problem_of_its_own(
    client: AsyncRolloutClient,
) -> None:
    problems = await client.check_tasks([{}, ledger(task_id=3), ledger()], Sampling())
    assert {one.index for one in problems} == {0, 1}
    assert {one.task_id for one in problems} == {None}
    assert {one.field for one in problems if one.index == 0} == {"task_id", "agent", "messages"}


async def test_a_request_has_a_bounded_number_of_tasks(client: AsyncRolloutClient) -> None:
    for count in (0, MAX_CHECKS_PER_REQUEST + 1):
        with pytest.raises(ValidationError):
            await client.check_tasks([ledger()] * count)
    assert await client.check_tasks([ledger()] * MAX_CHECKS_PER_REQUEST) == []


async def test_the_hint_for_an_agent_of_ones_own_names_its_fields(
    client: AsyncRolloutClient,
) -> None:
    own, ours = await client.check_tasks([ledger(data={}), ledger(agent="math", data={})])
    assert own.hint == (
        "`data` of the agent 'ledger' has answer; `prorl check --agent "
        f"{Ledger.__module__}:Ledger --schema` and `GET /v1/agents` have its schema"
    )
    assert ours.hint == "`data` of the agent 'math': docs/reference/task_data.md"


async def test_a_refusal_names_the_task_for_what_the_wire_type_refuses_too(
    http: httpx.AsyncClient,
) -> None:
    groups = [
        {"group_id": "good", "task": ledger("q01")},
        {"group_id": "bad", "task": ledger("q03", messages=[])},
        {"group_id": "worse", "task": ledger("q04"), "n": 0},
        {"group_id": "no id", "task": {}},
    ]
    answer = await http.post("/v1/rollouts", json={"groups": groups})
    said = answer.json()["error"]["message"]
    assert "task q03: messages: List should have at least 1 item" in said
    assert "groups.2.n: " in said
    assert "groups.3.task.task_id: Field required" in said
