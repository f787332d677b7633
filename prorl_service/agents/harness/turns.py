"""A harness in the place of an agent's loop: its program runs until it ends or may not go on.

Each of its model calls is answered by the gateway; it has no other network, and whatever it starts
ends with the sandbox. What it left out, was refused, or printed becomes figures and a report.
"""

import asyncio
import contextlib
import hashlib
import shlex
import signal
from dataclasses import dataclass

from pydantic import JsonValue

from prorl_service.agents.base import RolloutContext, put_files
from prorl_service.agents.harness.data import HarnessData
from prorl_service.errors import AgentError, TaskError
from prorl_service.gateway.app import application
from prorl_service.gateway.harnesses import store
from prorl_service.gateway.harnesses.preset import ProgramStart
from prorl_service.gateway.harnesses.store import Installed
from prorl_service.gateway.rollout import RolloutGateway
from prorl_service.gateway.serving import served
from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.schemas import FinishReason
from prorl_service.tools.base import Toolset

GRACE_S = 2.0
"""Seconds for the program to end by itself when nothing more is sampled for it."""
TAIL_CHARS = 2000
KILLED = (128 + signal.SIGKILL, 128 + signal.SIGTERM)
"""Exit codes of a program that was killed: the policy's commands did that, so it is graded."""
KEY = "policy"
"""API key that programs are given; the gateway of a sandbox asks for none."""
MODEL = "policy"
DEFAULT_REPLY_TOKENS = 8192
NO_LIMIT_S = 7 * 24 * 3600.0
"""The program's time-out: RUN's budget ends it."""


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
        await put_files(sandbox, start.files)
        result = await sandbox.call_tool(
            "bash", {"command": _script(start, home)}, timeout_s=NO_LIMIT_S
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


class HarnessTurns:
    def __init__(self, data: HarnessData) -> None:
        """Raises `InvalidRequest`."""
        self.program = Program(data)
        self.figures: dict[str, float] = {}
        self._data = data
        self._ended: ProgramExit | None = None
        self._gateway: RolloutGateway | None = None

    def report(self) -> dict[str, JsonValue]:
        gateway, ended = self._gateway, self._ended
        return {
            **self.program.described(),
            "exit_code": None if ended is None else ended.exit_code,
            "output": "" if ended is None else ended.output[-TAIL_CHARS:],
            "without_effect": [*sorted(gateway.counts.without_effect)] if gateway else [],
            "left_out": [*sorted(gateway.counts.left_out)] if gateway else [],
        }

    async def turns(self, rollout: RolloutContext, tools: Toolset, brief: str) -> FinishReason:
        """Raises `BackendError`, `SandboxError`, `AgentError` for a program that fails or never
        asked the policy, and `TaskError` for one whose first request is too long."""
        strict = self._data.history == "harness"
        gateway = RolloutGateway(rollout.attempt, strict=strict)
        self._gateway = gateway
        try:
            async with rollout.attempt.turns_budget() as budget:
                reason = await self._driven(rollout, gateway, tools, brief)
        except TimeoutError:
            if not budget.expired():
                raise
            reason = FinishReason.TIMEOUT
        printed = "" if self._ended is None else self._ended.output
        for name, value in gateway.mark(self._data.train, printed).items():
            self.figures[name] = self.figures.get(name, 0.0) + value
        return reason

    async def _driven(
        self, rollout: RolloutContext, gateway: RolloutGateway, tools: Toolset, brief: str
    ) -> FinishReason:
        if self._data.where == "outside":
            return await self._outside(rollout, gateway)
        listener = await tools.sandbox.listen(0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with served(application(gateway), listener, rollout.services.connections):
            start = self.program.start(rollout, tools.sandbox, url, brief)
            program = asyncio.create_task(start)
            try:
                await asyncio.wait((program, gateway.finish), return_when="FIRST_COMPLETED")
                if gateway.finish.done():
                    await asyncio.wait((program,), timeout=GRACE_S)
            finally:
                program.cancel()  # does nothing to one that has ended
                await asyncio.wait((program,))
        if gateway.finish.done():
            with contextlib.suppress(asyncio.CancelledError):
                self._ended = program.result()
            return gateway.finish.result()
        self._ended = program.result()
        return self._reason(rollout, gateway, self._ended)

    async def _outside(self, rollout: RolloutContext, gateway: RolloutGateway) -> FinishReason:
        """Waits until somebody says that the program has ended, or it may not go on."""
        with rollout.services.doors.opened(rollout.rollout_id, application(gateway)) as door:
            ended = asyncio.create_task(door.ended.wait())
            try:
                await asyncio.wait((ended, gateway.finish), return_when="FIRST_COMPLETED")
            finally:
                ended.cancel()
        if gateway.finish.done():
            return gateway.finish.result()
        self._ended = ProgramExit(0, "")
        return self._reason(rollout, gateway, self._ended)

    def _reason(
        self, rollout: RolloutContext, gateway: RolloutGateway, ended: ProgramExit
    ) -> FinishReason:
        if not rollout.turns and gateway.counts.too_long:
            raise TaskError(
                f"the first request of {self.program.name} is longer than the model's context of"
                f" {rollout.attempt.max_model_len} tokens",
                hint="serve the model with more, or choose a harness with a shorter prompt",
            )
        if not rollout.turns:
            raise AgentError(
                f"{self.program.name} ended with code {ended.exit_code} and never asked the"
                f" policy: {ended.output[-TAIL_CHARS:].strip() or 'it printed nothing'}"
            )
        if ended.exit_code in (0, *KILLED):
            return FinishReason.FINISHED
        refusal = gateway.refusal
        # Some programs give up at a reply that was cut, as pi does since 1.6.
        is_cut = refusal is None and rollout.turns[-1].finish_reason == "length"
        if gateway.counts.too_long or is_cut:
            return FinishReason.LENGTH
        cause = "" if refusal is None else f" after the gateway refused a request ({refusal})"
        raise AgentError(
            f"{self.program.name} ended with code {ended.exit_code}{cause}:"
            f" {ended.output[-TAIL_CHARS:].strip() or 'it printed nothing'}"
        )


def _script(start: ProgramStart, home: str) -> str:
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


def _ended(result: ToolResult) -> ProgramExit:
    code = result.data.get("exit_code")
    return ProgramExit(code if isinstance(code, int) else None, result.output)
