"""Sandboxes over images in containers of an engine with Docker's command line: no kind of its own.

The engine starts one container per image, whose zygote makes namespaces and mounts, for which the
engine's own filter and masks are off. Every sandbox is forked from it, as everywhere: what isolates
sandboxes from each other and from the host does not depend on the engine. Around all of them are
its own namespaces, users' among them: a container whose root is the host's is refused
(`ContainerDoor`).

Limits of a sandbox are the service's, since the engine knows one container for all sandboxes of an
image.
"""

import asyncio
import io
import json
import os
import resource
import secrets
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

from prorl_service.errors import ProRLError, SandboxError
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.cache import programs_directory
from prorl_service.sandbox.host import bundle, spec
from prorl_service.sandbox.host.door import opened_door
from prorl_service.sandbox.host.image_provider import ImageProvider, namespaces
from prorl_service.sandbox.host.zygotes import (
    TRIAL_TIMEOUT_S,
    Container,
    Zygotes,
    container_user,
)
from prorl_service.sandbox.images import ImageOptions
from prorl_service.sandbox.images.engine_images import ContainerEngine, EngineImages

TRIAL_IMAGE = "localhost/prorl-trial:1"
"""Image of empty directories, in which a container is tried."""
TRIAL_DIRECTORIES = ("dev", "proc", "etc", "tmp", "root")

OPTIONS = [
    *("--rm", "--pull=never", "--network=none", "--log-driver=none", "--no-healthcheck"),
    *("--user=0:0", "--workdir=/"),
    # What the zygote needs to make sandboxes, in namespaces that are the container's own.
    *("--cap-add=SYS_ADMIN", "--cap-add=NET_ADMIN"),
    *("--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"),
    "--security-opt=label=disable",
]


class EngineProvider(ImageProvider):
    def __init__(
        self,
        engine: ContainerEngine,
        options: Sequence[str],
        images: ImageOptions,
        *,
        install_hint: str,
        default_image: str | None = None,
    ) -> None:
        """Tries the engine once. Raises `SandboxError` with the reason if it does not work.

        `options` are further ones of `run`. Tasks without an image get the `default_image`; raises
        `TaskError` if that is invalid.
        """
        self.kind = engine.name
        self._images = EngineImages(engine, images)
        super().__init__(user=None, default_image=default_image, configs=self._images.config)
        self._engine = engine.command
        self._options = [*OPTIONS, *options, *_limits()]
        self._runtime = bundle.directory()
        self._try(install_hint)

    async def _launch(self, key: str, resources: AsyncExitStack) -> Container:
        image = await resources.enter_async_context(self._images.image(key))
        return self._container(image, resources, spec.ZYGOTE_AT_DOOR)

    def _container(self, image: str, resources: AsyncExitStack, *program: str) -> Container:
        door = resources.enter_context(opened_door(not_root=container_user() is not None))
        name = f"prorl-{os.getpid()}-{secrets.token_hex(4)}"
        # The engine removes it by itself, unless its monitor was killed.
        resources.push_async_callback(self._images.remove_container, name)
        first, *arguments = bundle.server(*program)
        mounts = {
            self._runtime: bundle.INSIDE,
            door.directory: bundle.DOOR_INSIDE,
            programs_directory(): bundle.PROGRAMS_INSIDE,
        }
        command = [
            *(*self._engine, "run", f"--name={name}", *self._options),
            *(f"--volume={path}:{inside}:ro" for path, inside in mounts.items()),
            *(f"--entrypoint={first}", image, *arguments),
        ]
        # The engine's own files and socket are found by variables; no container gets them.
        return Container(command, os.environ, door)

    def _try(self, hint: str) -> None:
        """Starts a container of an empty image, and makes a sandbox's namespaces in it."""
        try:
            import_trial_image(self._engine)
            with ThreadPoolExecutor(1) as thread:  # callers may be inside an event loop
                thread.submit(asyncio.run, self._trial()).result()
        except (ProRLError, OSError, subprocess.SubprocessError) as error:
            reason = error.message if isinstance(error, ProRLError) else _said(error)
            message = f"{self.kind} does not work: {reason}"
            raise SandboxError(message, hint=hint, retryable=False) from error

    async def _trial(self) -> None:
        wanted = json.dumps(namespaces(SandboxLimits()))

        async def launch(image: str, resources: AsyncExitStack) -> Container:
            return self._container(image, resources, spec.PROBE_AT_DOOR, wanted)

        zygotes = Zygotes(launch, user=None)
        try:
            async with asyncio.timeout(TRIAL_TIMEOUT_S):
                await zygotes.acquire(TRIAL_IMAGE).started()
        except TimeoutError:
            raise SandboxError(f"it starts no container in {TRIAL_TIMEOUT_S:g} s") from None
        finally:
            await zygotes.close()


def found(program: str, hint: str) -> str:
    """Returns the path of an engine's program. Raises `SandboxError`."""
    path = shutil.which(program)
    if path is None:
        raise SandboxError(f"{program} is not installed", hint=hint, retryable=False)
    return path


def import_trial_image(engine: Sequence[str]) -> None:
    """Makes the image unless it is there. Raises `SubprocessError`, `OSError`."""
    inspect = [*engine, "image", "inspect", TRIAL_IMAGE]
    looked = subprocess.run(inspect, capture_output=True, check=False, timeout=TRIAL_TIMEOUT_S)
    if looked.returncode:
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as tar:
            for name in TRIAL_DIRECTORIES:
                directory = tarfile.TarInfo(name)
                directory.type, directory.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(directory)
        subprocess.run(
            [*engine, "import", "-", TRIAL_IMAGE],
            input=content.getvalue(),
            capture_output=True,
            check=True,
            timeout=TRIAL_TIMEOUT_S,
        )


def _said(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return str(error.stderr.decode(errors="replace").strip())
    return str(error)


def _limits() -> list[str]:
    """Returns limits on containers as options: engines raise them, which not every user may."""
    most_processes = int(Path("/proc/sys/kernel/pid_max").read_text())
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
    if processes == resource.RLIM_INFINITY or processes > most_processes:
        processes = most_processes
    return [f"--ulimit=nofile={files}:{files}", f"--ulimit=nproc={processes}:{processes}"]
