"""What an unfinished rollout does at the moment, for people."""

from enum import StrEnum

from pydantic import Field

from prorl_service.schemas.base import WireModel
from prorl_service.schemas.rollouts import Stage


class WaitsFor(StrEnum):
    """Causes by which an unfinished rollout does not end yet."""

    WORKER = "worker"
    """A free worker of the next stage."""
    ENGINE = "engine"
    """An engine that serves: a slot, room in its cache, or the end of an update of weights."""
    MODEL = "model"
    """A model call in progress."""
    TOOL = "tool"
    """A tool call in progress."""
    AGENT = "agent"
    """Code of the agent, and what that code waits for."""
    SERVICE = "service"
    """The service's own work: a free scoring process, or writing a turn down."""


class Activity(WireModel):
    """What an unfinished rollout does now."""

    stage: Stage = Field(description="Stage that it is in, or waits to enter.")
    is_queued: bool = Field(description="Whether it waits to enter the stage.")
    took_s: float = Field(description="Seconds in the stage, or of waiting to enter it.")
    worked_s: float = Field(0.0, description="Seconds of the stage that count against its budget.")
    budget_s: float | None = Field(None, description="Budget of the stage; null while queued.")
    waits_for: WaitsFor
    waits_s: float = Field(description="Seconds since that last changed.")
    tool: str = Field("", description="Name of the tool that is called.")
