"""Tasks in the rows of a trainer's data set: messages, and one JSON string with all the rest.

A string, because data sets force all rows to one schema, and `data` differs from task to task.
Pure; each plug-in chooses the column or key that holds the string.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from prorl_service.schemas import Difficulty, Message, Task

ChatMessage = Mapping[str, Any]


def task_payload(
    *,
    task_id: str,
    agent: str | None = None,
    data: Mapping[str, Any] | None = None,
    image: str | None = None,
    difficulty: Difficulty | None = None,
) -> str:
    fields: dict[str, Any] = {
        "task_id": task_id,
        "agent": agent,
        "data": dict(data or {}),
        "image": image,
    }
    if difficulty is not None:
        fields["difficulty"] = difficulty.model_dump()
    return json.dumps(fields)


def task_from(
    messages: Sequence[ChatMessage],
    payload: str | None,
    *,
    default_agent: str | None,
    no_agent_hint: str,
    data: Mapping[str, Any] | None = None,
) -> Task:
    """Returns the task in `payload`, for `default_agent` if it names none.

    Without a payload the task consists of the messages and `data`. Raises `ValueError` for an
    invalid task, and with `no_agent_hint` if there is no agent.
    """
    if payload:
        fields = json.loads(payload)
    else:
        fields = {"task_id": _content_id(messages), "data": dict(data or {})}
    fields["agent"] = fields.get("agent") or default_agent
    if fields["agent"] is None:
        raise ValueError(f"a prompt names no agent: {no_agent_hint}")
    return Task(messages=[_message(message) for message in messages], **fields)


def _message(message: ChatMessage) -> Message:
    """Drops None values: data sets give every message the keys of all others, filled with None."""
    given = {key: value for key, value in message.items() if value is not None}
    if not isinstance(given.get("content"), str):
        raise ValueError(f"message content must be text, not {message.get('content')!r:.80}")
    return Message(**given)


def _content_id(messages: Sequence[ChatMessage]) -> str:
    content = json.dumps([[one.get("role"), one.get("content")] for one in messages])
    return "prompt-" + hashlib.sha256(content.encode()).hexdigest()[:16]
