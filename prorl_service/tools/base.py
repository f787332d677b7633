"""Tools that a model may call: a JSON schema for the prompt, bound to a sandbox for the work.

A tool's own failure is a result for the model; exceptions mean that the sandbox or a server failed.
"""

import asyncio
import base64
import time
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol, cast, runtime_checkable

from pydantic import BaseModel, ValidationError

from prorl_service import metrics
from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.schemas import ToolCallRecord
from prorl_service.schemas.pictures import canonical
from prorl_service.tokens.formats import ToolCall, ToolSchema


@runtime_checkable
class Tool(Protocol):
    """A tool with an attribute `may_repeat` that is true does nothing outside its sandbox that a
    repeated call would do again. Rollouts that continue after a restart tell of all other tools'
    calls that may have been made twice. An attribute `packages` has the modules that the tool needs
    where the service runs, and the extra of this package that brings each."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def arguments(self) -> type[BaseModel]: ...

    async def call(self, sandbox: Sandbox, arguments: Any, *, timeout_s: float) -> ToolResult:
        """Runs the tool with an instance of `self.arguments`. Raises `SandboxError`.

        A result with `ends_rollout` is the last of its rollout.
        """


UNSEEN = "[an image: left out, the model reads text only]"


@cache
def _parameters(arguments: type[BaseModel]) -> dict[str, Any]:
    parameters = arguments.model_json_schema()
    parameters.pop("title", None)
    for field in parameters.get("properties", {}).values():
        if not isinstance(field, dict):  # JSON Schema's `true`: anything
            continue
        field.pop("title", None)
        if field.get("default", ...) is None:  # only says that it is not required
            del field["default"]
    return parameters


def function_schema(tool: Tool) -> ToolSchema:
    """Returns the tool as chat templates and OpenAI clients know it; `parameters` are shared."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": _parameters(tool.arguments),
        },
    }


class Toolset:
    """The tools of one rollout, bound to its sandbox. Calls run one after another, as written."""

    def __init__(self, tools: Sequence[Tool], sandbox: Sandbox | None, *, timeout_s: float) -> None:
        """`sandbox` None: all tools are of servers, which use none."""
        self._tools = {tool.name: tool for tool in tools}
        self.sandbox = cast(Sandbox, sandbox)
        self._timeout_s = timeout_s
        self.schemas: list[ToolSchema] = [function_schema(tool) for tool in tools]
        self.note = ""
        """Text for the model that goes before the output of the next call."""
        self.shows_pictures = False
        """True if the policy sees pictures; those in results are left out otherwise."""
        self.ended_rollout = False
        """True once a call has ended the rollout; later calls must not be made."""

    def reaches_outside(self, call: ToolCall) -> bool:
        """Returns whether a restart may leave effects of the call: all tools but those that say
        otherwise have some."""
        tool = self._tools.get(call.name)
        return tool is not None and not getattr(tool, "may_repeat", False)

    async def call(self, call: ToolCall) -> ToolCallRecord:
        started, started_at = time.monotonic(), time.time()
        result = await self._run(call)
        output, self.note = self.note + result.output, ""
        given = [one["base64"] for one in result.data.get("images", ())]
        pictures, problems = list[str](), list[str]()
        if given and self.shows_pictures:
            pictures, problems = await asyncio.to_thread(_readable, given)
        elif given and not output:
            output = UNSEEN
        self.ended_rollout = result.ends_rollout
        took_s = time.monotonic() - started
        metrics.tool_called(call.name if call.name in self._tools else "unknown", took_s=took_s)
        return ToolCallRecord(
            name=call.name,
            arguments=call.arguments,
            output="\n".join([output, *problems]),
            pictures=pictures,
            is_error=result.is_error,
            duration_s=took_s,
            started_at=started_at,
        )

    async def _run(self, call: ToolCall) -> ToolResult:
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return ToolResult(f"There is no tool {call.name!r}. Tools: {known}.", is_error=True)
        try:
            arguments = tool.arguments.model_validate(call.arguments)
        except ValidationError as error:
            return ToolResult(_problems(tool, error), is_error=True)
        return await tool.call(self.sandbox, arguments, timeout_s=self._timeout_s)


def _readable(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns pictures, in base64, in the form that models get, and the problems of others."""
    pictures, problems = [], []
    for one in given:
        try:
            pictures.append(base64.b64encode(canonical(base64.b64decode(one))).decode())
        except ValueError as error:
            problems.append(f"[left out: {error}]")
    return pictures, problems


def _problems(tool: Tool, error: ValidationError) -> str:
    problems = "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'arguments'}: {problem['msg']}"
        for problem in error.errors(include_url=False)
    )
    return f"Wrong arguments for {tool.name}: {problems}."
