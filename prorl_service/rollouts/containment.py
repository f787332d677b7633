"""The boundary to agents' code: whatever it raises is an error that names the agent.

`SystemExit` and its like, raised in a task, would end the event loop, and the service with it.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from prorl_service.agents.base import AgentHandler
from prorl_service.agents.registry import AgentRegistry
from prorl_service.errors import AgentError, ProRLError
from prorl_service.schemas import Task
from prorl_service.utils import logs


@contextmanager
def contained(what: str) -> Iterator[None]:
    """Turns all exceptions into `AgentError`, except the service's own and pydantic's."""
    try:
        yield
    except (ProRLError, ValidationError):
        raise
    except BaseException as error:
        raise AgentError(f"{what} raised {described(error)}") from error


def make_handler(agents: AgentRegistry, task: Task) -> AgentHandler:
    """Makes the task's handler, which may change `task`: give each handler a copy."""
    with contained(f"{agents[task.agent].__name__}.__init__"):
        return agents.make(task)


def contain_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Makes tasks started during the work on a rollout raise `AgentError` for exceptions that would
    end `loop`. A handler may start tasks of its own, which no stage awaits."""

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> "asyncio.Task[Any]":
        if logs.rollout_id.get() is not None:
            work = _Contained(work)
        return asyncio.Task(work, loop=loop, **options)

    loop.set_task_factory(make)


class _Contained(Coroutine[Any, Any, Any]):
    """Steps `work` directly rather than in a coroutine around it: there, a cancellation before the
    first step would leave `work` unstarted, and Python would warn of that."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work

    def send(self, value: Any) -> Any:
        try:
            return self._work.send(value)
        except (SystemExit, KeyboardInterrupt) as end:
            raise _failure(end) from end

    def throw(self, *error: Any) -> Any:
        try:
            return self._work.throw(*error)
        except (SystemExit, KeyboardInterrupt) as end:
            raise _failure(end) from end

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Any:
        return self._work.__await__()


def _failure(end: BaseException) -> AgentError:
    return AgentError(f"a task of the agent raised {described(end)}")


def described(error: BaseException) -> str:
    """Returns class and message: that of a `KeyError` alone is just the key."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")
