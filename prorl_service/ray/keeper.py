"""One `prorl` process that is kept running: started again when it ends or answers nobody.

Runs in an actor's event loop, but knows nothing of Ray. The process ends with the thread of that
loop, however that ends (Linux ties a parent-death signal to a thread).
"""

import asyncio
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from prorl_service.local import bind_problem, free_port
from prorl_service.ray.plan import ProcessPlan, Report, State
from prorl_service.utils.files import write_whole
from prorl_service.utils.tasks import Changes

log = logging.getLogger(__name__)

START_LOOK_S, LOOK_S = 0.2, 2.0
"""Seconds between questions to a process that starts, and to one that serves."""
ANSWER_S = 5.0
START_S = 300.0
"""Seconds that a process may take until it answers."""
SILENT_S = 30.0
"""Seconds of silence after which a process is killed: the front left it long before."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
"""Seconds before a start, which double with each process that never answered."""
GRACE_S = 20.0
"""Seconds that a process may take to end, in addition to its drain."""
TAIL_BYTES = 2000
PROBLEM_CHARS = 300


class Keeper:
    def __init__(self, plan: ProcessPlan) -> None:
        self._plan = plan
        self._process: Process | None = None
        self._stopping = asyncio.Event()
        self._pause_s = FIRST_PAUSE_S
        self._changes = Changes()
        self._report = Report(number=0, state=State.STARTING, since=time.time())

    async def run(self) -> None:
        """Returns once the process is stopped."""
        while not self._stopping.is_set():
            async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_S) as http:
                problem = await self._run_once(http)
            if self._stopping.is_set():
                break
            log.warning("%s of %s ended: %s", self._plan.kind, self._plan.name, problem)
            again = self._report.restarts + 1
            self._tell(State.RESTARTING, problem=problem, restarts=again, pid=0)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._stopping.wait()
        self._tell(State.STOPPED, pid=0)

    async def report(self, seen: int, wait_s: float) -> Report:
        """Returns the state, once it is not the one with number `seen`, or after `wait_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._report.number == seen:
                    await self._changes.wait()
        return self._report

    async def stop(self) -> None:
        """Drains the process. Returns when it has ended; `run` returns then, too."""
        self._stopping.set()
        self._tell(State.STOPPING)
        if (process := self._process) is None:
            return
        _terminate(process)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._plan.drain_s + GRACE_S):
                await process.wait()
        await _killed(process)

    async def _run_once(self, http: httpx.AsyncClient) -> str:
        """Returns why the process ended."""
        try:
            port = await asyncio.to_thread(kept_port, self._plan)
            self._process = process = await _started(self._plan, port)
        except OSError as error:
            self._slow_down()
            return f"it cannot be started: {error}"
        url = self._plan.url(port)
        if self._stopping.is_set():
            _terminate(process)
        else:
            self._tell(State.STARTING, url=url, pid=process.pid)
        try:
            why = await self._watch(process, http, url)
        finally:
            await _killed(process)
            self._process = None
        return why or last_line(self._plan.log) or f"exit code {process.returncode}"

    async def _watch(self, process: Process, http: httpx.AsyncClient, url: str) -> str:
        """Returns when the process has ended or answers no more, and why if that is known."""
        ended = asyncio.ensure_future(process.wait())
        answered_at = began_at = time.monotonic()
        has_answered = False
        while not ended.done():
            if await _answers(http, url):
                answered_at, has_answered = time.monotonic(), True
                self._pause_s = FIRST_PAUSE_S
                if not self._stopping.is_set():
                    self._tell(State.SERVING, problem="")
            patience_s = SILENT_S if has_answered else START_S
            silent_s = time.monotonic() - answered_at
            if silent_s > patience_s and not self._stopping.is_set():
                process.kill()
                await ended
                return f"it did not answer for {silent_s:.0f} s"
            await asyncio.wait([ended], timeout=LOOK_S if has_answered else START_LOOK_S)
        if not has_answered:
            self._slow_down()
            return ""
        if killer := _signal(process):
            return f"{killer} ended it after {time.monotonic() - began_at:.0f} s"
        return ""

    def _slow_down(self) -> None:
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _tell(self, state: State, **changes: Any) -> None:
        """`changes`: other fields of the report."""
        old = self._report
        since = old.since if state is old.state else time.time()
        new = replace(old, state=state, since=since, **changes)
        if new != old:
            self._report = replace(new, number=old.number + 1)
            self._changes.notify()


async def _answers(http: httpx.AsyncClient, url: str) -> bool:
    """Returns whether there is any answer: a service that has failed says so to those who ask."""
    try:
        await http.get(f"{url}/health")
    except httpx.HTTPError:
        return False
    return True


async def _started(plan: ProcessPlan, port: int) -> Process:
    """Raises `OSError`."""
    plan.log.parent.mkdir(parents=True, exist_ok=True)
    (plan.directory / "journals").mkdir(exist_ok=True)
    config = await asyncio.to_thread(_config, plan)
    command = [
        *("setpriv", "--pdeathsig", "KILL", plan.python or sys.executable),
        *("-m", "prorl_service.cli", *config, plan.kind),
        *("--host", plan.host, "--port", str(port), *plan.options),
    ]
    environment = {**os.environ, **plan.environment}
    if plan.python is not None and "PYTHONPATH" not in plan.environment:
        environment.pop("PYTHONPATH", None)  # that of Ray's interpreter
    with plan.log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=output, stderr=output, env=environment
        )


def _terminate(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()


async def _killed(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def _signal(process: Process) -> str:
    """Returns the name of the signal that ended the process; "" if it ended by itself."""
    code = process.returncode or 0
    return signal.Signals(-code).name if code < 0 else ""


def _config(plan: ProcessPlan) -> list[str]:
    """Writes the file of options, which only this user may read."""
    if not plan.config:
        return []
    path = plan.directory / f"{plan.name}.yaml"
    write_whole(path, plan.config, mode=0o600)
    return ["--config", str(path)]


def kept_port(plan: ProcessPlan) -> int:
    """Returns the planned port, or the one that the process had before, or a free one.

    A process that keeps its address keeps its rollouts: its callers try again for a while.
    Raises `OSError`.
    """
    if plan.port:
        return plan.port
    file = plan.directory / f"{plan.name}.port"
    with suppress(OSError, ValueError):
        port = int(file.read_text())
        if bind_problem(port, plan.host) is None:
            return port
    port = free_port()
    while bind_problem(port, plan.host) is not None:
        port = free_port()
    plan.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(file, str(port))
    return port


def last_line(file: Path) -> str:
    """Returns the last line of a log, shortened."""
    try:
        with file.open("rb") as content:
            content.seek(max(0, file.stat().st_size - TAIL_BYTES))
            lines = content.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:PROBLEM_CHARS]
