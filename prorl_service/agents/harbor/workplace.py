"""The sandbox of a Harbor task: its directory, variables, users and checks before work begins.

Everything here runs before the agent, or in a sandbox that no agent has seen.
"""

import asyncio
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from prorl_service.agents.base import RolloutContext
from prorl_service.agents.harbor.data import Healthcheck, Network, Place
from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.archives import load_archive
from prorl_service.sandbox.base import Sandbox, ToolResult
from prorl_service.sandbox.egress.policy import EgressPolicy
from prorl_service.sandbox.egress.proxy import Egress
from prorl_service.sandbox.images.image_config import ImageConfig

LOGS = ("/logs/agent", "/logs/artifacts", "/logs/verifier")
_EACH = f"for one in /logs {' '.join(LOGS)}; do"
ARE_REAL = f"( {_EACH} [ -d $one ] && [ ! -L $one ] || exit 1; done )"
"""Script that fails if one of them is missing, or a link."""
_MADE = f"( {_EACH} [ ! -L $one ] || rm $one; mkdir -p $one; done )"
SETUP_TIMEOUT_S = 600.0
SHORT_S = 60.0
DEFAULT_WORKDIR = "/"
SAID_CHARS = 2000


@dataclass(slots=True)
class Workplace:
    sandbox: Sandbox
    place: Place
    config: ImageConfig
    egress: Egress | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the proxy, where there is one."""

    @classmethod
    async def opened(
        cls, rollout: RolloutContext, place: Place, *, user: str | None = None
    ) -> Self:
        """Opens a sandbox. Raises `TaskError`, `SandboxError`."""
        image = place.image or rollout.task.image
        config = ImageConfig()
        if image is not None:
            config = await rollout.attempt.sandboxes.image_config(image)
        sandbox = await rollout.open_sandbox(place.limits(), image=image, user=user or config.user)
        return cls(sandbox, place, config)

    async def connect(self, rollout: RolloutContext, network: Network) -> None:
        """Gives commands the network that the task asks for, if the operator allows that."""
        rules = rollout.services.network
        if network.mode == "none" or rules is None:
            return
        rollout.attempt.has_network = True
        self.egress = Egress(EgressPolicy(network.mode, tuple(network.hosts), rules))
        listener = await self.sandbox.listen(0)
        served = self.egress.served(listener)
        self.variables = await rollout.attempt.resources.enter_async_context(served)

    def hosts_reached(self) -> dict[str, int]:
        """Returns connections by host; those refused have an exclamation mark before their name."""
        if self.egress is None:
            return {}
        refused = {f"!{host}": count for host, count in self.egress.refused.items()}
        return {**self.egress.allowed, **refused}

    @property
    def workdir(self) -> str:
        return self.place.workdir or self.config.workdir or DEFAULT_WORKDIR

    async def prepare(self) -> None:
        """Makes directories, enters the working directory, sets variables. Raises `TaskError`,
        `SandboxError`."""
        environment = {**self.variables, **self.place.environment}
        prepared = _prepared(self.workdir, environment)
        await self.must(prepared, "the sandbox cannot be prepared")

    async def add_files(self, archive: str, *, has_setup: bool) -> None:
        """Puts a step's files into the working directory, and runs their setup.sh."""
        await self.unpack(archive, self.workdir)
        if has_setup:
            script = f"( cd {shlex.quote(self.workdir)} && bash setup.sh ) < /dev/null"
            await self.must(script, "setup.sh of the step failed", SETUP_TIMEOUT_S)

    async def unpack(self, archive: str, directory: str) -> None:
        tar = await asyncio.to_thread(load_archive, archive)
        try:
            await self.sandbox.restore(directory, tar)
        except OSError as error:
            raise TaskError(f"files cannot be put at {directory}: {error}") from error

    async def check_health(self, check: Healthcheck | None) -> None:
        """Waits until the check, if there is one, succeeds, as Docker does. Raises `TaskError`."""
        if check is None:
            return
        grace_ends = time.monotonic() + check.start_period_s
        failures = 0
        while True:
            done = await self.bash(f"( {check.command}\n)", check.timeout_s)
            if not done.is_error:
                return
            in_grace = time.monotonic() < grace_ends
            failures += not in_grace
            if failures >= check.retries:
                raise TaskError(f"the health check failed: {done.output[-SAID_CHARS:]}")
            await asyncio.sleep(check.start_interval_s if in_grace else check.interval_s)

    async def bash(self, command: str, timeout_s: float) -> ToolResult:
        return await self.sandbox.call_tool("bash", {"command": command}, timeout_s=timeout_s)

    async def must(self, command: str, problem: str, timeout_s: float = SHORT_S) -> None:
        """Raises `TaskError` if the command fails."""
        done = await self.bash(command, timeout_s)
        if done.is_error:
            raise TaskError(f"{problem}: {done.output[-SAID_CHARS:]}")


def _prepared(workdir: str, environment: dict[str, str]) -> str:
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    enter = f"{_MADE}; mkdir -p {shlex.quote(workdir)} && cd {shlex.quote(workdir)}"
    return "\n".join([*exports, enter])


async def quietly(sandbox: Sandbox, command: str, timeout_s: float) -> None:
    """Runs a command whose failure is the agent's own."""
    try:
        await sandbox.call_tool("bash", {"command": command}, timeout_s=timeout_s)
    except SandboxError:
        return
