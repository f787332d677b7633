"""Running containers that sandboxes are forked from, one per image.

The kind decides what a container is; for `process` it is a plain process. `execd.zygote` runs
inside, never a model's command.
"""

import asyncio
import errno
import json
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from prorl_service.errors import SandboxError
from prorl_service.sandbox.guest.execd.fd_passing import receive_fds
from prorl_service.sandbox.host.door import ContainerDoor
from prorl_service.sandbox.host.processes import (
    Child,
    Process,
    as_user,
    bounded_memory,
    close_in_forks,
    readable,
)
from prorl_service.utils import descriptors
from prorl_service.utils.tasks import Changes, TaskOwner, wait_uncancelled

MAX_IDLE = 16
"""Idle containers that are kept for the next sandbox: 70 MB of memory each."""

MAX_AHEAD = 8
"""Containers that are started, and images that are fetched, before a sandbox is asked for."""

NOBODY = 65534

START_TIMEOUT_S = 120.0
FORK_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 2.0
TRIAL_TIMEOUT_S = 30.0
MAX_ANSWER_BYTES = 4096


def _few_variables() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/"}


@dataclass(frozen=True, slots=True)
class Container:
    command: list[str]
    environment: Mapping[str, str] = field(default_factory=_few_variables)
    door: ContainerDoor | None = None
    """Way of the control socket into it; None if it is the command's standard input."""


Launch = Callable[[AsyncExitStack], Awaitable[Container]]
"""Function that says how a container is started. The stack gets what must last as long."""


@cache  # asked for with every container
def container_user() -> int | None:
    """Returns the user of containers: `NOBODY` if the service is root and may choose, else None."""
    if os.geteuid() != 0:
        return None
    maps = [Path(f"/proc/self/{kind}_map").read_text().split() for kind in ("uid", "gid")]
    return NOBODY if all(_covers(list(map(int, fields)), NOBODY) for fields in maps) else None


def _covers(id_map: list[int], wanted: int) -> bool:
    """Returns whether lines of (first id here, first id outside, number of ids) contain an id."""
    return any(
        first <= wanted < first + count
        for first, count in zip(id_map[::3], id_map[2::3], strict=True)
    )


def try_once(name: str, command: list[str], *, hint: str) -> None:
    """Runs a command as a container is run. Raises `SandboxError` with the reason if it fails."""
    reason = failure_of(command, container_user(), timeout_s=TRIAL_TIMEOUT_S)
    if reason is not None:
        raise SandboxError(f"{name} does not work: {reason}", hint=hint, retryable=False)


def failure_of(
    command: list[str],
    user: int | None,
    *,
    timeout_s: float,
    cwd: str = "/",
    variables: Mapping[str, str] | None = None,
) -> str | None:
    """Runs a command, with `variables` besides the service's. Returns what it said if it failed."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_s,
            cwd=cwd,
            env={**os.environ, **(variables or {})},
            **as_user(user),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"


class ContainerDied(SandboxError):
    """A container that had forked others died. It may have used the connection, so that is lost."""


class Zygote:
    """A container of one image, which runs until `stop` or until it dies."""

    def __init__(
        self, launch: Launch, *, user: int | None, background: TaskOwner, name: str
    ) -> None:
        self._user = user
        self.users = 0
        self.proven = False
        """True once it has forked a sandbox."""
        self.has_served = False
        """True once one of its sandboxes has answered."""
        self._ending = False
        self._one_at_a_time = asyncio.Lock()
        self._ready: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        self._life = background.run_once(self._live(launch), name=name)

    @property
    def usable(self) -> bool:
        return not (self._ending or self._life.done() or self._life.cancelling())

    async def _live(self, launch: Launch) -> None:
        try:
            async with AsyncExitStack() as resources:
                await self._run(await launch(resources))
        except BaseException as error:
            if self._ready.done():
                raise
            stopped = isinstance(error, asyncio.CancelledError)
            reason = SandboxError("the container was stopped") if stopped else error
            self._ready.set_exception(reason)
            self._ready.exception()  # retrieved: it is for callers, if there are any

    async def _run(self, container: Container) -> None:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.setblocking(False)
        close_in_forks(control)
        with control, theirs:
            child = Child(
                container.command,
                stdin=theirs.fileno(),
                env=container.environment,
                cwd="/",
                user=self._user,
            )
            helpers: list[Process] = []
            try:
                if container.door is not None:
                    helpers = [await container.door.hand_in(theirs, child.ended)]
                theirs.close()  # only the container has it now, so that its end is seen
                await _answer(control, START_TIMEOUT_S)
                if container.door is None:
                    helpers = child.descendants()
                self._ready.set_result(control)
                # The container is useless once one of them ends: one serves the files of its image.
                whoever = [process.ended for process in (child, *helpers)]
                await asyncio.wait(whoever, return_when=asyncio.FIRST_COMPLETED)
            except OSError as error:
                raise SandboxError(f"the container failed: {child.messages() or error}") from None
            finally:
                self._ending = True
                control.shutdown(socket.SHUT_RDWR)  # also wakes a caller that waits for an answer
                await _end([child, *helpers])
                async with self._one_at_a_time:  # until then a caller waits on its descriptor
                    pass

    async def started(self) -> socket.socket:
        """Waits until it runs. Raises what starting it raised."""
        return await asyncio.shield(self._ready)

    async def fork(self, order: dict[str, object], connection: int) -> Process:
        """Forks a sandbox with that connection.

        Raises `SandboxError`, also `ContainerDied`, and what starting the container raised.
        """
        control = await self.started()
        forking = asyncio.create_task(self._fork(control, order, connection))
        try:
            # An answer left unread would be taken for the next one's.
            return await wait_uncancelled(forking)
        except asyncio.CancelledError:
            if forking.exception() is None:
                await wait_uncancelled(asyncio.create_task(_discard(forking.result())))
            raise

    async def _fork(
        self, control: socket.socket, order: dict[str, object], connection: int
    ) -> Process:
        messages = bounded_memory()
        try:
            async with self._one_at_a_time:
                packet = json.dumps(order).encode()
                socket.send_fds(control, [packet], [connection, messages])
                pidfds = await _answer(control, FORK_TIMEOUT_S)
            if not pidfds:  # the kernel had no free descriptor for it
                raise SandboxError(f"the sandbox has no descriptor: {os.strerror(errno.EMFILE)}")
        except BaseException as error:
            os.close(messages)
            if not isinstance(error, OSError):
                raise
            self._begin_to_end()
            died = ContainerDied if self.proven else SandboxError
            raise died(f"the container died: {error}") from error
        self.proven = True
        return Process(pidfds[0], messages)

    async def stop(self) -> None:
        """Ends the container, and with it all its sandboxes."""
        self._begin_to_end()
        await asyncio.wait([self._life])

    def _begin_to_end(self) -> None:
        if self.usable:  # a second cancellation would interrupt the end itself
            self._life.cancel()


class Zygotes:
    """The containers of one service. The least recently used idle ones are ended."""

    def __init__(
        self, launch: Callable[[str, AsyncExitStack], Awaitable[Container]], *, user: int | None
    ) -> None:
        """`launch` also takes the image. `user` runs the containers; None: the service's own."""
        descriptors.raise_limit()
        self._launch = launch
        self._user = user
        self._running: dict[str, Zygote] = {}
        self._ahead: dict[str, Zygote | None] = {}
        """Containers started ahead, by image; None: given up for another, not started ahead."""
        self._changes = Changes()
        self._background = TaskOwner()
        self._is_closed = False

    async def fork(
        self, image: str, order: dict[str, object], connection: int
    ) -> tuple[Zygote, Process]:
        """Forks a sandbox of the image. Returns its container, to be released, and the sandbox.

        Raises what `Zygote.fork` raises.
        """
        zygote = self.acquire(image)
        try:
            return zygote, await zygote.fork(order, connection)
        except BaseException:
            self.release(zygote)
            raise

    def acquire(self, image: str) -> Zygote:
        """Returns the container of the image, started if needed; `release` it later.

        Raises `SandboxError` after `close`: nothing would end a container that starts then.
        """
        if self._is_closed:
            raise SandboxError("no sandbox starts any more: their provider is closed")
        if image in self._running and not self._running[image].usable:
            self._end(image)  # it died; its remains take a while to end
        zygote = self._running.pop(image, None)
        if zygote is None:
            launch = partial(self._launch, image)
            name = f"container {image!r}"
            zygote = Zygote(launch, user=self._user, background=self._background, name=name)
        self._running[image] = zygote  # the most recently used comes last
        zygote.users += 1
        return zygote

    def release(self, zygote: Zygote) -> None:
        zygote.users -= 1
        self._changes.notify()
        idle = self._idle()
        for image in idle[: max(0, len(idle) - MAX_IDLE)]:
            self._end(image)

    def _end(self, image: str) -> asyncio.Task[None]:
        stopping = self._running.pop(image).stop()
        return self._background.run_once(stopping, name=f"stop container {image!r}")

    def _idle(self) -> list[str]:
        """Returns the images of idle containers, least recently used first."""
        return [image for image, zygote in self._running.items() if not zygote.users]

    async def evict_one(self, wait_s: float) -> bool:
        """Ends an idle container, or else the last that was started ahead and is unused.

        Waits for one to become idle. Returns False if that takes longer than `wait_s`.
        """
        try:
            async with asyncio.timeout(wait_s):
                while not (idle := self._idle()):
                    if not self._give_up_ahead():
                        await self._changes.wait()
        except TimeoutError:
            return False
        await asyncio.shield(self._end(idle[0]))
        return True

    def _give_up_ahead(self) -> bool:
        for image, zygote in reversed(self._ahead.items()):
            if zygote is not None and zygote.users == 1:
                self._ahead[image] = None
                self.release(zygote)
                return True
        return False

    def prewarm(self, images: Iterable[str]) -> None:
        """Starts containers of the first images, and keeps them while they are expected.

        A failed start is not repeated ahead; a sandbox that asks for the image gets the error.
        """
        expected = list(dict.fromkeys(images))[:MAX_AHEAD]
        for image in self._ahead.keys() - set(expected):
            zygote = self._ahead.pop(image)
            if zygote is not None:
                self.release(zygote)
        for image in expected:
            if image not in self._ahead and not self._is_closed:
                self._ahead[image] = self.acquire(image)
        self._changes.notify()

    async def close(self) -> None:
        self._is_closed = True
        await asyncio.gather(*(zygote.stop() for zygote in self._running.values()))
        await self._background.drain()


async def _discard(process: Process) -> None:
    process.kill()
    await asyncio.wait([process.ended])
    process.close()


async def _answer(control: socket.socket, timeout_s: float) -> list[int]:
    """Returns the descriptors. Raises `OSError` without an answer, `SandboxError` for a refusal."""
    async with asyncio.timeout(timeout_s):
        await readable(control.fileno())
    text, fds = receive_fds(control, MAX_ANSWER_BYTES, 1)
    if not text:
        raise ConnectionResetError("it ended")
    if text != b"done":
        raise SandboxError(f"the container cannot start a sandbox: {text.decode()}")
    return fds


async def _end(processes: list[Process]) -> None:
    """Waits for processes to end, as the connection is closed; kills those that do not."""
    ended = [process.ended for process in processes]
    try:
        await asyncio.wait(ended, timeout=STOP_TIMEOUT_S)
    finally:
        for process in processes:
            process.kill()
        await asyncio.wait(ended)
        for process in processes:
            process.close()
