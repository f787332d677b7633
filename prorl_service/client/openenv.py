"""Tasks of the agent `openenv`, one for each that an OpenEnv server lists: docs/environments.md.

Asks the server itself, as the trainer reaches it; rollouts reach it by the name that the operator
gave it. A task holds its split and index, never its content, which may include the answer.
"""

from collections.abc import Callable
from typing import Any

import httpx

from prorl_service.errors import InvalidRequest
from prorl_service.schemas import Message, Task

AGENT = "openenv"
INSTRUCTION = "Act in the environment by calling tools, until the episode ends."
TIMEOUT_S = 60.0


def openenv_tasks(
    url: str,
    *,
    server: str,
    split: str = "train",
    start: int = 0,
    stop: int | None = None,
    instruction: str | Callable[[dict[str, Any]], str] = INSTRUCTION,
    key: str | None = None,
    **data: Any,
) -> list[Task]:
    """Returns tasks `start` to `stop` of a split of the environment at `url`.

    `server`: its name at the service. `instruction`: text of the prompt, or a function that makes
    it of a task's content. `data`: more of `task.data`, such as `reward`. Raises `InvalidRequest`
    for a server that lists no such tasks, and `httpx.TransportError`.
    """
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT_S, trust_env=False) as http:
        [environment, *_] = _get(http, "/list_environments")
        _check_split(split, _get(http, f"/{environment}/splits"))
        count = _post(http, f"/{environment}/num_tasks", split=split)["num_tasks"]
        numbers = range(count)[start:stop]
        texts = [instruction] * len(numbers)
        if callable(instruction):
            asked = {"split": split, "start": start, "stop": stop}
            found = _post(http, f"/{environment}/task_range", **asked)["tasks"]
            texts = [instruction(one) for one in found]
    return [
        Task(
            task_id=f"{server}-{split}-{number}",
            agent=AGENT,
            messages=[Message(role="user", content=text)],
            data={"server": server, "reset": {"split": split, "index": number}, **data},
        )
        for number, text in zip(numbers, texts, strict=True)
    ]


def _check_split(split: str, listed: list[dict[str, Any]]) -> None:
    names = [str(one["name"]) for one in listed]
    if split not in names:
        raise InvalidRequest(
            f"the environment has no split {split!r}", hint=f"it has {', '.join(names)}"
        )


def _get(http: httpx.Client, path: str) -> Any:
    return _checked(http.get(path))


def _post(http: httpx.Client, path: str, **body: Any) -> Any:
    return _checked(http.post(path, json=body))


def _checked(response: httpx.Response) -> Any:
    if response.status_code == httpx.codes.NOT_IMPLEMENTED:
        raise InvalidRequest(
            "the environment lists no tasks", hint="write rows of your own: docs/environments.md"
        )
    if response.is_error:
        raise InvalidRequest(
            f"{response.request.url.path} answers HTTP status {response.status_code}: "
            f"{response.text[:500]}"
        )
    return response.json()
