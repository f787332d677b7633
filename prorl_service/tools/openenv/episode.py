"""One rollout's episode in an environment, and the tools by which the policy acts in it.

Every step's reward is kept; a refused action is an answer for the model. Knows no agent.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pydantic import JsonValue

from prorl_service.errors import ToolServerError
from prorl_service.sandbox.base import ToolResult
from prorl_service.schemas import Turn
from prorl_service.tools.openenv.protocol import INVALID, Observation, Refused
from prorl_service.tools.remote import clipped

if TYPE_CHECKING:
    from prorl_service.tools.openenv.session import Session

Mode = Literal["step", "mcp"]
"""Meaning of a tool call: the action of a step as it is, or a call of one of the server's tools."""

STEP = "step"
"""Name of the tool whose arguments are an action: OpenEnv keeps it for itself, so that no server's
tool has it."""
UNWRITABLE = "Unable to serialize"
"""Beginning of an error by which OpenEnv (0.10) ends a session whose action a validator of the
environment's author refused: it cannot write the refusal. That is the policy's fault."""


@dataclass(slots=True)
class Episode:
    session: "Session"
    turns: Sequence[Turn] = ()
    """The rollout's turns so far, of which the last takes the steps."""
    rewards: list[float | None] = field(default_factory=list)
    """Reward of each step that the environment took; None if it gave none."""
    turn_rewards: dict[int, float] = field(default_factory=dict)
    """Sum of the rewards of each turn's steps, by its number."""
    done: bool = False
    refused: int = 0
    """Number of actions that the server found invalid."""
    raised: int = 0
    """Number of steps at which the environment raised an error."""
    problem: str = ""
    """Message of the last of these errors."""

    async def call(
        self, name: str, arguments: dict[str, JsonValue], *, timeout_s: float
    ) -> ToolResult:
        """Takes a step: an action as it is, or a call of one of the server's tools. Raises
        `ToolServerError` if the session is lost, or of no more use."""
        action = arguments
        if name != STEP:
            action = {"type": "call_tool", "tool_name": name, "arguments": arguments}
        try:
            seen = await self.session.step(action, timeout_s=timeout_s)
        except Refused as refused:
            return self._refusal(refused)
        self._note(seen.reward)
        self.done = seen.done
        text, is_error = shown(seen)
        return ToolResult(clipped(text), is_error=is_error, ends_rollout=seen.done)

    def _note(self, reward: float | None) -> None:
        self.rewards.append(reward)
        if reward is not None:
            turn = len(self.turns) - 1
            self.turn_rewards[turn] = self.turn_rewards.get(turn, 0.0) + reward

    def _refusal(self, refused: Refused) -> ToolResult:
        problem = str(refused)
        if refused.code == INVALID:
            self.refused += 1
            return ToolResult(clipped(f"Invalid action: {problem}"), is_error=True)
        if refused.code == "EXECUTION_ERROR":
            self.raised += 1
            self.problem = problem[:1000]
            return ToolResult(clipped(f"The environment raised: {problem}"), is_error=True)
        if refused.code == "SESSION_ERROR" and problem.startswith(UNWRITABLE):
            self.refused += 1
            return ToolResult("Invalid action.", is_error=True, ends_rollout=True)
        raise ToolServerError(
            f"the environment's server answered {refused.code}: {problem[:1000]}",
            hint="its log says why",
        )


def shown(seen: Observation) -> tuple[str, bool]:
    """Returns an observation for the model, and whether it is an error: JSON, or a tool's result.

    Never its metadata, where imported environments keep the answers of their tasks.
    """
    content = seen.observation
    if not isinstance(content, dict):
        return _text(content), False
    if "tool_name" not in content:
        return _json({name: one for name, one in content.items() if name != "metadata"}), False
    if error := content.get("error"):
        return _text(error["message"] if isinstance(error, dict) else error), True
    result = content.get("result")
    return _text(result), isinstance(result, dict) and result.get("is_error") is True


def prompt_of(first: Observation) -> str:
    """Returns the text for the model that a reset gave: the observation, and the task's own prompt,
    which imported environments keep in the metadata."""
    metadata = first.metadata if isinstance(first.metadata, dict) else {}
    parts = [shown(first)[0], _text(metadata.get("prompt") or "")]
    return "\n\n".join(part for part in parts if part not in ("", "{}"))


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def _text(value: JsonValue) -> str:
    """Returns blocks of content and messages as their text, anything else as JSON."""
    match value:
        case str():
            return value
        case {"content": [*blocks], "is_error": _} | {"blocks": [*blocks]}:  # of MCP, of ORS
            return _text(blocks)
        case [_, *_] if all(map(_is_text, value)):
            return "\n\n".join(map(_text_of, value))
    return _json(value)


def _is_text(value: JsonValue) -> bool:
    match value:
        case {"type": "text", "text": str()} | {"role": str(), "content": str() | list()}:
            return True
        case {"type": "image" | "audio" | "resource" | "resource_link"}:
            return True
    return False


def _text_of(value: JsonValue) -> str:
    match value:
        case {"text": str(text)}:
            return text
        case {"role": _, "content": content}:
            return _text(content)
        case {"type": kind}:
            return f"[{kind}, which cannot be shown]"
    raise AssertionError("see `_is_text`")
