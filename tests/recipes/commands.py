"""The recipes' commands, run as a user would, in separate processes on the tiny model."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.verl.training import DIE_WITH_US, MARK, ROOT, end_survivors

PLUGINS = ("plugins/trl", "plugins/verl", "plugins/tinker")
LIBRARY = ".venv-reasoning"
"""Directory of reasoning-gym, where it is installed (scripts/setup-reasoning)."""
TIMEOUT_S = 1500


class Command:
    """`python -m MODULE OVERRIDES` in the repository's root; its output goes to `log`."""

    def __init__(self, module: str, log: Path, *overrides: str) -> None:
        self.log = log
        self._mark = uuid.uuid4().hex
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(str(ROOT / path) for path in ("", *PLUGINS, LIBRARY)),
            MARK: self._mark,
        }
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*DIE_WITH_US, sys.executable, "-m", module, *overrides],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def wait(self) -> int:
        return self._process.wait(TIMEOUT_S)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Raises `AssertionError` with the command's output if the command ends first."""
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            assert self._process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def kill(self) -> None:
        """Kills the command like a machine that goes down: it gets no chance to clean up."""
        self._process.kill()
        self._process.wait()

    def survivors(self) -> list[str]:
        """Kills what the command left running; returns the command lines."""
        return end_survivors(self._mark)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")[-8000:]


@contextmanager
def running(module: str, log: Path, *overrides: str) -> Iterator[Command]:
    command = Command(module, log, *overrides)
    try:
        yield command
    finally:
        command.kill()
        command.survivors()


def progress(output: Path) -> list[dict[str, Any]]:
    path = output / "progress.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
