"""A process of the scoring pool: what runs in it, and how its other end sees it.

The limit of CPU time is the kernel's, so that not even code without an interpreter's step in it
outlasts it. A call that runs out of it, or crashes the process, did so by itself; a process that
was killed by others, or that got no CPU time to speak of, says nothing of the call.
"""

import logging
import multiprocessing
import pickle
import resource
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from prorl_service.errors import EvaluatorError

KILLED_BY_OTHERS = frozenset({-signal.SIGKILL, -signal.SIGTERM})

EXIT_S = 10.0
"""For a process whose connection has ended to be gone."""


class ScoringAborted(EvaluatorError):
    """The call used up its CPU time or memory, or crashed its process: its arguments did it."""


@dataclass(frozen=True, slots=True)
class Reply:
    value: float = 0.0
    error: EvaluatorError | None = None
    is_last: bool = False
    """The process answers no more."""


class Worker:
    def __init__(self, memory_mb: int, cpu_s: int) -> None:
        """Raises `OSError`."""
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._cpu_s = cpu_s
        self._process = context.Process(
            target=_work, args=(theirs, memory_mb << 20, cpu_s), daemon=True
        )
        with theirs:
            self._process.start()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def send(self, works: Sequence[bytes]) -> None:
        """Each is answered in turn. Raises `OSError`."""
        self.connection.send(works)

    def reply(self, timeout_s: float) -> Reply:
        """What has come; if nothing has, the worker took longer than `timeout_s`."""
        try:
            if self.connection.poll():
                reply: Reply = self.connection.recv()
                return reply
        except (EOFError, OSError, pickle.UnpicklingError):
            return Reply(error=self._why_it_ended(), is_last=True)
        message = f"scoring took more than {timeout_s:g} s"
        hint = "it used little CPU time: the host is overloaded"
        return Reply(error=EvaluatorError(message, hint=hint, retryable=True), is_last=True)

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self.connection.close()

    def _why_it_ended(self) -> EvaluatorError:
        self._process.join(EXIT_S)
        code = self._process.exitcode
        if code is None or code in KILLED_BY_OTHERS:
            return EvaluatorError("the scoring process was killed", retryable=True)
        if code == -signal.SIGXCPU:
            return ScoringAborted(f"scoring took more than {self._cpu_s} s of CPU time")
        return ScoringAborted(f"the scoring process crashed, exit code {code}")


def _work(connection: Connection, memory_bytes: int, cpu_s: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the service says when to end
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # warns that its time limits are off
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    is_last = False
    while not is_last:
        try:
            works = connection.recv()
        except EOFError:
            return
        for work in works:
            _limit_cpu(cpu_s)
            value, error = _result(work)
            # Caches keep what is large. It must not be missing to the next call.
            is_last = _held_bytes() > memory_bytes // 2
            connection.send(Reply(value, error, is_last))
            if is_last:
                return


def _limit_cpu(cpu_s: int) -> None:
    """Of the whole process, hence from what it has used so far. Counted in whole seconds."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + cpu_s + 1, hard))


def _result(work: bytes) -> tuple[float, EvaluatorError | None]:
    try:
        function, args, kwargs = pickle.loads(work)
        return float(function(*args, **kwargs)), None
    except MemoryError:
        return 0.0, ScoringAborted("scoring took more memory than it may")
    except Exception as error:  # whatever a scoring function raises
        return 0.0, EvaluatorError(f"scoring failed: {error!r}")


def _held_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
