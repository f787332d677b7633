"""Answers of OpenEnv servers, and limits of both kinds of connection to them."""

from pydantic import BaseModel, JsonValue

CONNECT_TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Maximum size of one answer on the wire. A longer one ends the session."""
INVALID = "VALIDATION_ERROR"
"""Code of the refusal of a reset or an action that breaks its schema."""


class Refused(Exception):
    """The server's error in place of an observation."""

    def __init__(self, code: str, problem: str) -> None:
        super().__init__(problem)
        self.code = code


class Away(Exception):
    """The server cannot be reached now."""


class Observation(BaseModel):
    """What the server answers to a reset or a step."""

    observation: JsonValue
    reward: float | None = None
    """The step's reward; None if the environment gave none."""
    done: bool
    metadata: JsonValue = None
