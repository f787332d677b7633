"""Failures at a NeMo Gym server, with NeMo Gym's own names for what failed and at which stage.

Pure. A failure is never a reward: each is an error that says whose fault it is, and whether to try
again. docs/environments.md has the table.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from prorl_service.errors import AgentError, EvaluatorError, ProRLError, TaskError, ToolServerError

FailureStage = Literal["seed", "agent", "verification"]
"""Stages of NeMo Gym that talk to a server. Admission is a submission here; cleanup is not done."""

UNAVAILABLE = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses of a server, or of a proxy before it, that may answer later."""
MAX_DETAIL_CHARS = 500


class ToolServerAway(ToolServerError):
    """No answer came: nobody listens, the connection broke, or the server is too busy."""


class SessionLost(ToolServerAway):
    """The server was down during the rollout, so that the session's state may be gone."""


_NAMES = tomllib.loads(Path(__file__).with_name("failures.toml").read_text())


def described(server: object, stage: FailureStage, kind: str, detail: str) -> str:
    return f"{server}: {kind} in {stage}: {detail}".rstrip(": ")


def of_status(server: object, stage: FailureStage, status: int, content: bytes) -> ProRLError:
    """Returns the error for a status that is not 200, other than of a tool."""
    detail = f"status {status}: {content[:MAX_DETAIL_CHARS].decode(errors='replace')}"
    if status in UNAVAILABLE:
        return ToolServerAway(described(server, stage, "provider_unavailable", detail))
    if stage == "verification":
        hint = "the server's verifier failed on this rollout; see its log"
        return EvaluatorError(described(server, stage, "verifier_error", detail), hint=hint)
    if status < 500:
        hint = "is the row of this server's data set, and the URL that of a resources server?"
        return TaskError(described(server, stage, "agent_request_failed", detail), hint=hint)
    message = described(server, stage, "agent_request_failed", detail)
    return ToolServerError(message, hint="see the server's log")


def of_verdict(server: object, answer: Mapping[str, Any]) -> ProRLError | None:
    """Returns the error of a verdict whose reward is not valid; None if it is.

    `_ng_failure_class` and the `instance_config` are how older servers say so.
    """
    config = answer.get("instance_config")
    is_masked = answer.get("mask_sample") or (
        isinstance(config, dict) and config.get("mask_sample")
    )
    kind = str(answer.get("failure_kind") or answer.get("_ng_failure_class") or "")
    if not is_masked and not answer.get("_ng_failure_class"):
        return None
    reason = str(answer.get("failure_reason") or "")[:MAX_DETAIL_CHARS]
    message = described(server, "verification", kind or "the sample is masked", reason)
    if kind in _NAMES["retried"]:
        return ToolServerError(message)
    if kind in _NAMES["agents"]:
        return AgentError(message)
    return EvaluatorError(message, retryable=kind == "judge_failed")
