"""The task of `prorl try`, as a trainer sends it: a file, standard input, or JSON itself."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from prorl_service.cli.presets import known
from prorl_service.client.harness import with_harness, with_program
from prorl_service.errors import ProRLError, problems_of
from prorl_service.schemas import Limits, Sampling, Task
from prorl_service.schemas.base import WireModel
from prorl_service.schemas.suggestions import nearest_fields

Options = TypeVar("Options", Sampling, Limits)

IN_GROUPS = ("group_id", "n", "priority", "client", "lease_s", "owner")
"""Fields of a group that do not matter to one rollout."""


@dataclass(frozen=True, slots=True)
class GivenTask:
    task: Task
    sampling: Sampling
    limits: Limits


def read_task(given: str, agent: str | None) -> GivenTask:
    """Reads a task, a group with a task, sampling and limits, or a request with one group. The
    agent is `agent`, or the task's own if that is None; `task_id` may be missing.

    Raises `ProRLError`."""
    where, text = _text(given)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ProRLError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProRLError(f"{where} is not a JSON object", hint="give one task")
    group = _group(value)
    parts = {name: part for name, part in group.items() if name not in IN_GROUPS}
    task = {"task_id": "try", **parts.pop("task")}
    if agent is not None:
        task["agent"] = agent
    elif "agent" not in task:
        raise ProRLError(f"{where} names no agent", hint="name it: prorl try math --task …")
    try:
        found = _Group.model_validate({**parts, "task": task})
    except ValidationError as error:
        hint = nearest_fields(error.errors(), _Group)
        raise ProRLError(f"{where}: {problems_of(error)}", hint=hint) from None
    return GivenTask(found.task, found.sampling, found.limits)


def _group(value: dict[str, Any]) -> dict[str, Any]:
    match value:
        case {"groups": [{"task": {}}]}:
            return dict(value["groups"][0])
        case {"task": {}}:
            return value
    return {"task": value}


def with_program_of(harness: str, given: GivenTask) -> GivenTask:
    """Puts a preset, or a Python file, in the place of the agent's loop. Raises `ProRLError`."""
    if not harness.endswith(".py"):
        return replace(given, task=with_harness(given.task, known(harness)))
    try:
        program = Path(harness).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ProRLError(f"--harness {harness}: {error}") from None
    return replace(given, task=with_program(given.task, program))


class _Group(WireModel):
    task: Task
    sampling: Sampling = Sampling()
    limits: Limits = Limits()


def overridden(options: Options, by: Options) -> Options:
    """Returns `options` with the given ones of `by`. Valid, since no field depends on another."""
    return options.model_copy(update={name: getattr(by, name) for name in by.model_fields_set})


def _text(given: str) -> tuple[str, str]:
    """Returns the source's name and its text. Raises `ProRLError`."""
    if given.lstrip().startswith("{"):
        return "--task", given
    where = f"--task {given}"
    try:
        return where, sys.stdin.read() if given == "-" else Path(given).read_text()
    except OSError as error:
        raise ProRLError(f"{where}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ProRLError(f"{where}: {error}") from None
