"""Where untrusted commands run. `provider` chooses a kind; `base` says what a sandbox is."""

from typing import Literal

from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.bubblewrap import BubblewrapProvider
from prorl_service.sandbox.process import ProcessSandboxProvider

SandboxKind = Literal["auto", "bubblewrap", "process"]


def provider(kind: SandboxKind) -> SandboxProvider:
    """The provider of that kind; `auto` is the strongest that works here, never `process`.

    Raises `SandboxError`, with what to do, when it does not work here.
    """
    return ProcessSandboxProvider() if kind == "process" else BubblewrapProvider()
