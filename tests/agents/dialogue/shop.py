"""A dialogue about an order, the policy that serves it, and the user who is served."""

from collections.abc import Callable, Mapping
from typing import Any

from prorl_service.agents.dialogue.agent import DialogueAgent
from prorl_service.agents.dialogue.user import STOP
from prorl_service.schemas import Limits, Task
from prorl_service.server.settings import ServiceSettings, UserOptions
from prorl_service.testing import Played, Reply, StubApi, call, play
from prorl_service.testing.stubs import Messages

FIRST_WORDS = "I want tea instead of milk."
PLACE = {"table": "orders", "id": "17"}
REPLIES: list[Reply] = [
    "Which order?",
    call("look_up", **PLACE),
    call("change", **PLACE, field="item", value="tea"),
    "Done.",
]
"""Replies of a policy that does as it is asked."""


def data(**fields: Any) -> dict[str, Any]:
    return {
        "user": {"persona": "A {friendly} customer.", "goal": "Tea in order 17."},
        "records": {
            "orders": {"17": {"item": "milk", "count": 2, "paid": False}, "18": {"item": "soap"}}
        },
        "changes": {"orders": {"17": {"item": "tea"}}},
        **fields,
    }


def task(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": FIRST_WORDS}], "data": data(**fields)}


def whole_task(**fields: Any) -> Task:
    return Task.model_validate({"task_id": "t", "agent": "dialogue", **task(**fields)})


def answers(messages: Messages) -> str:
    """Names the order when asked, and stops at the next message."""
    return "Order 17." if messages[-1]["content"] == "Which order?" else STOP


def settings_of(user: StubApi) -> ServiceSettings:
    return ServiceSettings(user=UserOptions(user_url=f"{user.url}/v1", user_model="person"))


async def talked(
    user: StubApi | Callable[[Messages], str | Mapping[str, Any]],
    replies: list[Reply] = REPLIES,
    limits: Limits = Limits(),
    **fields: Any,
) -> Played:
    """Plays a dialogue. `fields`: of the task's data."""
    if not isinstance(user, StubApi):
        async with StubApi(user) as endpoint:
            return await talked(endpoint, replies, limits, **fields)
    return await play(
        DialogueAgent, task(**fields), replies, settings=settings_of(user), limits=limits
    )
