"""Helpers for tests of agents: `play` runs a rollout of an agent with scripted replies, and fakes
stand in for engines, sandboxes and judges. The service itself does not use this package.
"""

from prorl_service.testing.fakes import (
    Answer,
    FakeSandbox,
    FakeSandboxes,
    ScriptedGenerator,
)
from prorl_service.testing.playing import Played, play
from prorl_service.testing.replies import Reply, call
from prorl_service.testing.stubs import StubApi, StubEngine, StubJudge, safetensors

__all__ = [
    "Answer",
    "FakeSandbox",
    "FakeSandboxes",
    "Played",
    "Reply",
    "ScriptedGenerator",
    "StubApi",
    "StubEngine",
    "StubJudge",
    "call",
    "play",
    "safetensors",
]
