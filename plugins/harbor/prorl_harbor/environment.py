"""Harbor's environment on the service's sandboxes: one of an image's container for each trial.

What a task asks for and cannot have here is refused by name before the sandbox starts.
`definition` knows these refusals, `runtime` the containers, `commands` and `transfer` the ways in
and out.
"""

import asyncio
import inspect
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.environments.definition import (
    require_agent_environment_definition,
    should_use_prebuilt_docker_image,
)
from harbor.models.task.config import NetworkMode, NetworkPolicy

from prorl_harbor import commands, definition, runtime, transfer
from prorl_harbor.definition import PROCESSES, User
from prorl_service.errors import ProRLError, SandboxError, TaskError
from prorl_service.neighbours import UntestedRelease, neighbours
from prorl_service.sandbox.base import Sandbox, SandboxLimits
from prorl_service.sandbox.host import cgroups
from prorl_service.sandbox.images.dockerfiles.context import context_archive

T = TypeVar("T")

PREPARE_TIMEOUT_S = 60.0
DOWNLOAD_MB = 1024


class Environment(BaseEnvironment):  # type: ignore[misc]
    """A sandbox of the rollout service.

    Options, by `--ek NAME=VALUE`: `without_network` lets tasks run that ask for a network,
    `as_root` those that ask for another user; `processes` limits processes and threads,
    `download_mb` what one directory may bring out.
    """

    def __init__(
        self,
        *args: Any,
        without_network: bool = False,
        as_root: bool = False,
        processes: int = PROCESSES,
        download_mb: int = DOWNLOAD_MB,
        **kwargs: Any,
    ) -> None:
        self._without_network = _checked("without_network", without_network, bool)
        self._as_root = _checked("as_root", as_root, bool)
        self._processes = _checked("processes", processes, int)
        self._download_bytes = _checked("download_mb", download_mb, int) << 20
        self._sandbox: Sandbox | None = None
        self._workdir = "/"
        unknown = kwargs.keys() - inspect.signature(BaseEnvironment.__init__).parameters.keys()
        if unknown:
            raise ValueError(
                f"prorl has no option {', '.join(sorted(unknown))}, only without_network, as_root,"
                " processes, download_mb"
            )
        super().__init__(*args, **kwargs)

    # --- what Harbor asks before it starts anything ---------------------------------------------

    @staticmethod
    def type() -> str:
        return "prorl"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        # Without a network, a change of policy changes nothing.
        return EnvironmentCapabilities(
            disable_internet=True, dynamic_network_policy=self._without_network
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(
            cpu_limit=cgroups.delegation() is not None, memory_limit=True, fractional_cpus=True
        )

    @classmethod
    def preflight(cls, **_: object) -> None:  # Harbor 0.26 gives `kwargs`
        try:
            neighbours()["harbor"].check("prorl_harbor")
            runtime.check()
        except (UntestedRelease, SandboxError) as error:
            raise SystemExit(_line(error)) from None

    def _validate_definition(self) -> None:
        directory, image = self.environment_dir, self.task_env_config.docker_image
        definition.check_files(directory)
        require_agent_environment_definition(directory, docker_image=image)
        definition.check_image(image)
        if self._host_mounts:
            targets = ", ".join(str(mount["target"]) for mount in self._host_mounts)
            raise ValueError(f"mounts: prorl sandboxes see no directory of the host: {targets}")
        if not self._as_root:
            definition.check_users(directory)
            self._check_user("USER", definition.dockerfile_user(directory))
        self._limits()

    def _validate_network_policy_support(self) -> None:
        super()._validate_network_policy_support()
        for policy in (self._network_policy, *self._phase_network_policies):
            self._check_network(policy)

    def validate_network_policy_support(self, network_policy: NetworkPolicy | None = None) -> None:
        super().validate_network_policy_support(network_policy)
        self._check_network(network_policy or self._network_policy)

    def _check_network(self, policy: NetworkPolicy) -> None:
        if policy.network_mode == NetworkMode.PUBLIC and not self._without_network:
            raise ValueError(
                "network_mode = 'public' (Harbor's default): prorl sandboxes have no network; "
                "set network_mode = 'no-network' in task.toml, or run the task without a network "
                "all the same by --ek without_network=true"
            )

    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        """Does nothing: there is no network in any case."""

    def _limits(self) -> SandboxLimits:
        return definition.limits_of(
            cpus=self._effective_cpus,
            memory_mb=self._effective_memory_mb,
            storage_mb=self._effective_storage_mb,
            processes=self._processes,
        )

    def _check_user(self, key: str, user: User) -> None:
        if not (self._as_root or definition.is_root(user)):
            raise ValueError(
                f"{key} = {user!r}: in prorl sandboxes there is only root; {definition.AS_ROOT}"
            )

    # --- start and stop -------------------------------------------------------------------------

    async def start(self, force_build: bool) -> None:
        await self.stop(delete=True)
        try:
            await self._start(force_build)
        except BaseException as error:
            await self.stop(delete=True)
            if isinstance(error, TaskError):
                raise SandboxBuildFailedError(_line(error)) from error
            if isinstance(error, ProRLError):
                raise RuntimeError(_line(error)) from error
            raise

    async def _start(self, force_build: bool) -> None:
        sandboxes = await runtime.sandboxes()
        reference = await self._image(force_build)
        config = await sandboxes.config(reference)
        self._check_user("the image's USER", config.user)
        self._workdir = self.task_env_config.workdir or config.workdir or "/"
        sandbox = sandboxes.provider.create(image=reference, limits=self._limits())
        self._sandbox = sandbox
        await sandbox.start()
        await commands.install(sandbox)
        await commands.prepare(
            sandbox,
            [self._workdir],
            open_to_all=self._mount_targets(writable_only=True),
            timeout_s=PREPARE_TIMEOUT_S,
        )
        await self._upload_environment_dir_after_start()

    async def _image(self, force_build: bool) -> str:
        """Returns the reference of the task's image, or of its Dockerfile and its files."""
        image = self.task_env_config.docker_image
        if should_use_prebuilt_docker_image(
            self.environment_dir, docker_image=image, force_build=force_build
        ):
            return str(image)
        return await asyncio.to_thread(context_archive, self.environment_dir)

    async def stop(self, delete: bool) -> None:
        """Ends the sandbox, which cannot be kept: `delete` makes no difference."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.stop()

    @property
    def sandbox(self) -> Sandbox:
        """The running sandbox. Raises `RuntimeError` if there is none."""
        if self._sandbox is None:
            raise RuntimeError("the environment was not started, or has been stopped")
        return self._sandbox

    # --- commands and files ---------------------------------------------------------------------

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Runs a command of bash. Raises `RuntimeError` at its time-out, as Docker's environment
        does; its processes have been killed then."""
        self._check_user("user", self._resolve_user(user))
        ended, stdout, stderr = await commands.run(
            self.sandbox,
            command,
            cwd=self._absolute(cwd or "."),
            environment=_variables(self._merge_env(env) or {}),
            timeout_s=timeout_sec or None,
            on_text=self._output_callback(),
        )
        if ended.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        return ExecResult(stdout=stdout, stderr=stderr, return_code=ended.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await transfer.upload(self.sandbox, Path(source_path), self._absolute(target_path), "file")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await transfer.upload(
            self.sandbox, Path(source_dir), self._absolute(target_dir), "directory"
        )

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self._download(source_path, Path(target_path), "file")

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self._download(source_dir, Path(target_dir), "directory")

    async def _download(self, source: str, target: Path, kind: transfer.Kind) -> None:
        path = self._absolute(source)
        left_out = await transfer.download(
            self.sandbox, path, target, kind, max_bytes=self._download_bytes
        )
        for line in left_out:
            self.logger.warning("download of %s: %s", path, line)

    def _absolute(self, path: str) -> str:
        """Returns a path inside, with the slash at its end that means a directory."""
        joined = str(PurePosixPath(self._workdir, path))
        return f"{joined}/" if path.endswith("/") and joined != "/" else joined


def _checked(name: str, value: T, kind: type[T]) -> T:
    """Returns an option's value. Raises `ValueError` for another type, such as a misspelt true."""
    if type(value) is not kind:
        raise ValueError(f"{name} must be {kind.__name__}, not {value!r}")
    return value


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    for name, value in environment.items():
        if not name or "=" in name or "\0" in f"{name}{value}":
            raise ValueError(f"not an environment variable: {name!r}")
    return {name: str(value) for name, value in environment.items()}


def _line(error: ProRLError) -> str:
    return f"{error.message}: {error.hint}" if error.hint else error.message
