"""Rows of NeMo Gym data sets as tasks of the agent `nemo_gym`: messages and tools out of OpenAI's
Responses parameters.

Refuses by name what a text model cannot be given. Pure, but for reading a file; calls no server.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prorl_service.errors import InvalidRequest, problems_of
from prorl_service.schemas import Message, Task

AGENT = "nemo_gym"
PARAMETERS = "responses_create_params"
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles of chat templates, by those of the Responses API."""
TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
ROUTES = frozenset({"verify", "seed_session", "close_session", "aggregate_metrics", "mcp"})
"""Routes of a server that no tool may be called like."""
UNSUPPORTED = ("previous_response_id", "prompt", "background", "stream", "conversation")
"""Parameters that need a state or a way of answering which this project does not have."""
MEDIA = re.compile(r"data:(image|audio|video)/")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

Json = Mapping[str, Any]


def tasks_in(file: Path, *, server: str) -> list[Task]:
    """Returns a task for each row of a JSONL file, for the NeMo Gym server of that name.

    Raises `InvalidRequest` with the number of the line for a row that cannot be run.
    """
    tasks = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            tasks.append(task_of(json.loads(line), server=server))
        except json.JSONDecodeError as error:
            raise InvalidRequest(f"{file}, line {number}: it is not JSON: {error}") from None
        except InvalidRequest as error:
            raise InvalidRequest(f"{file}, line {number}: {error.message}") from None
    return tasks


def task_of(row: Json, *, server: str, task_id: str | None = None) -> Task:
    """Returns the row's task; by default its id is a digest of the row. Raises `InvalidRequest`."""
    digest = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()
    messages = messages_of(row)
    tools_of(row)
    return Task(
        task_id=task_id or f"{server}-{digest[:16]}",
        agent=AGENT,
        messages=messages,
        data={"server": server, "row": dict(row)},
    )


def chat_messages(task: Task) -> list[dict[str, Any]]:
    """Returns the task's messages for the prompt of a data set, whose columns have one type each:
    arguments of calls are JSON text."""
    dumped = [
        message.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        for message in task.messages
    ]
    for message in dumped:
        message.setdefault("content", "")
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"].get("arguments", {}))
    return dumped


# --- messages -----------------------------------------------------------------------------------


def messages_of(row: Json) -> list[Message]:
    """Returns the conversation that the row begins with. Raises `InvalidRequest`."""
    parameters = _parameters(row)
    given = parameters.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        raise _refusal("input", "it must be text or a list of items")
    messages: list[dict[str, Any]] = []
    if instructions := parameters.get("instructions"):
        messages.append({"role": "system", "content": instructions})
    for number, item in enumerate(items):
        where = f"input.{number}"
        if not isinstance(item, dict):
            raise _refusal(where, "it must be an object")
        _add(messages, item, where)
    try:
        return [Message.model_validate(message) for message in messages]
    except ValidationError as error:
        raise _refusal("input", problems_of(error)) from None


def _parameters(row: Json) -> Json:
    parameters = row.get(PARAMETERS)
    if not isinstance(parameters, dict):
        raise InvalidRequest(
            f"data.row: it has no object {PARAMETERS!r}",
            hint="a row of a NeMo Gym data set has one; materialized tasks are not supported",
        )
    for name in UNSUPPORTED:
        if parameters.get(name):
            raise _refusal(name, "it is not supported")
    for name, value in (parameters.get("metadata") or {}).items():
        if isinstance(value, str) and MEDIA.match(value):
            raise _refusal(f"metadata.{name}", f"{value.split('/')[0][5:]} is not supported")
    return parameters


def _add(messages: list[dict[str, Any]], item: Json, where: str) -> None:
    """Adds an item; what the assistant says and calls in a row is one message."""
    match item.get("type", "message"):
        case "message":
            _add_message(messages, item, where)
        case "reasoning":
            parts = item.get("content") or item.get("summary")
            messages.append(
                {"role": "assistant", "content": "", "reasoning_content": _text(parts, where)}
            )
        case "function_call":
            _assistant(messages).setdefault("tool_calls", []).append(
                {
                    "id": item.get("call_id"),
                    "function": {"name": item.get("name"), "arguments": item.get("arguments")},
                }
            )
        case "function_call_output":
            answer = {"role": "tool", "content": _text(item.get("output"), where)}
            messages.append(answer | {"tool_call_id": item.get("call_id")})
        case kind:
            raise _refusal(where, f"items of type {kind!r} are not supported")


def _add_message(messages: list[dict[str, Any]], item: Json, where: str) -> None:
    role = ROLES.get(str(item.get("role")))
    if role is None:
        raise _refusal(where, f"the role {item.get('role')!r} is not supported")
    text = _text(item.get("content"), where)
    last = messages[-1] if messages else {}
    if role == "assistant" and "reasoning_content" in last and not last["content"]:
        last["content"] = text
    else:
        messages.append({"role": role, "content": text})


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _refusal(where, "its content must be text or a list of parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
            raise _refusal(where, f"parts of type {kind!r} are not supported, only text")
        texts.append(part["text"])
    return "\n".join(texts)


# --- tools --------------------------------------------------------------------------------------


def tools_of(row: Json) -> list[dict[str, Any]]:
    """Returns the tools that the row offers, each with `name`, `description` and `parameters`.
    Raises `InvalidRequest`."""
    parameters = _parameters(row)
    choice = parameters.get("tool_choice") or "auto"
    if choice not in ("auto", "none"):
        raise _refusal("tool_choice", f"{json.dumps(choice)} is not supported, only auto and none")
    given = parameters.get("tools") or []
    if not isinstance(given, list):
        raise _refusal("tools", "it must be a list")
    tools = [_tool(tool, f"tools.{number}") for number, tool in enumerate(given)]
    return [] if choice == "none" else tools


def _tool(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise _refusal(where, f"tools of type {kind!r} are not supported, only functions")
    name = tool.get("name")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name) or name in ROUTES:
        raise _refusal(where, f"{name!r} cannot be the name of a tool")
    parameters = tool.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise _refusal(where, "its parameters must be a JSON schema")
    return {
        "name": name,
        "description": str(tool.get("description") or ""),
        "parameters": parameters,
    }


def _refusal(where: str, problem: str) -> InvalidRequest:
    return InvalidRequest.of_field(f"data.row.{PARAMETERS}.{where}", problem)
