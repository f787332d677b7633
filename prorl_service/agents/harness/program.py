"""The harness' program in its sandbox: its tree, its files, its HOME, its command line.

Whatever it starts ends with the sandbox; it has no network but the gateway.
"""

import hashlib
import math
import shlex
from dataclasses import dataclass

from pydantic import JsonValue

from prorl_service.agents.base import RolloutContext
from prorl_service.agents.harness.data import HarnessData
from prorl_service.errors import TaskError
from prorl_service.gateway.harnesses import store
from prorl_service.gateway.harnesses.preset import Start
from prorl_service.gateway.harnesses.store import Installed
from prorl_service.sandbox.base import Sandbox, ToolResult

KEY = "policy"
"""API key that programs are given; the gateway of a sandbox asks for none."""
MODEL = "policy"
DEFAULT_REPLY_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class ProgramExit:
    exit_code: int | None
    """Exit code; None if it was ended."""
    output: str
    """Head and tail of what it printed."""


class Program:
    def __init__(self, data: HarnessData) -> None:
        """Raises `InvalidRequest`."""
        self.name = data.harness or next(iter(data.command), data.where)
        self._data = data
        self._preset = data.preset()
        self._installed: Installed | None = None

    def find(self) -> None:
        """Raises `TaskError` if it is not installed here."""
        if self._data.harness is not None and self._preset.needs_install:
            self._installed = store.find(self._data.harness, self._data.version)

    def described(self) -> dict[str, JsonValue]:
        installed = self._installed
        return {"name": self.name, "version": None if installed is None else installed.version}

    async def start(
        self, rollout: RolloutContext, sandbox: Sandbox, url: str, brief: str
    ) -> ProgramExit:
        """Runs the program to its end. Cancelling it ends the program. Raises `SandboxError`,
        `TaskError`."""
        home = f"/tmp/home-{_digest(rollout.rollout_id)}"
        start = self._preset.filled(self._values(rollout, sandbox, url, brief, home))
        for path, text in start.files.items():
            try:
                await sandbox.upload(path, text.encode())
            except OSError as error:
                raise TaskError(f"cannot put {path!r} into the sandbox: {error}") from error
        result = await sandbox.call_tool(
            "bash", {"command": _script(start, home)}, timeout_s=_no_limit()
        )
        return _ended(result)

    def _values(
        self, rollout: RolloutContext, sandbox: Sandbox, url: str, brief: str, home: str
    ) -> dict[str, str]:
        tree = "" if self._installed is None else f"{sandbox.programs}/{self._installed.path.name}"
        most = rollout.sampling.max_tokens_per_turn or DEFAULT_REPLY_TOKENS
        return {
            "tree": tree,
            "python": sandbox.python,
            "url": url,
            "key": KEY,
            "model": MODEL,
            "context": str(rollout.attempt.max_model_len + self._preset.spare_tokens),
            "max_tokens": str(min(most, rollout.attempt.max_model_len)),
            "home": home,
            "prompt": brief,
        }


def _script(start: Start, home: str) -> str:
    """Returns a script that runs the program where the shell stands, and leaves the shell as it
    was."""
    variables = {"HOME": home, **start.environment}
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    lines = [
        "(",
        *exports,
        'mkdir -p "$HOME"',
        shlex.join(start.command),
        "code=$?",
        'rm -rf "$HOME"',
        "exit $code",
    ]
    return "\n".join([*lines, ") < /dev/null"])


def _digest(rollout_id: str) -> str:
    """Returns the same at each start: programs write their HOME into prompts, which a replay
    compares."""
    return hashlib.sha256(rollout_id.encode()).hexdigest()[:12]


def _no_limit() -> float:
    """Returns the program's time-out: RUN's budget ends it."""
    return float(math.ceil(7 * 24 * 3600))


def _ended(result: ToolResult) -> ProgramExit:
    code = result.data.get("exit_code")
    return ProgramExit(code if isinstance(code, int) else None, result.output)
