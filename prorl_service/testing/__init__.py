"""Helpers for tests of agents: `play` runs a rollout of an agent with scripted replies, and fakes
stand in for engines, sandboxes and judges. The service itself does not use this package.
"""

from prorl_service.testing.fakes import (
    Answer,
    FakeSandbox,
    FakeSandboxes,
    ScriptedGenerator,
    StubEngine,
    StubJudge,
)
from prorl_service.testing.playing import Played, play
from prorl_service.testing.replies import Reply, call

__all__ = [
    "Answer",
    "FakeSandbox",
    "FakeSandboxes",
    "Played",
    "Reply",
    "ScriptedGenerator",
    "StubEngine",
    "StubJudge",
    "call",
    "play",
]
