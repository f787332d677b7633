"""`harbor run` as a process, and what it reports."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HARBOR = Path(sys.executable).with_name("harbor")
TIMEOUT_S = 240


@dataclass(frozen=True, slots=True)
class Trial:
    rewards: dict[str, float] | None
    error: str
    """Type and message of the exception; empty if there is none."""
    directory: Path


class Job:
    """A run of Harbor on a task, or a directory of tasks."""

    def __init__(self, path: Path, *arguments: str, agent: str = "oracle") -> None:
        jobs = Path(tempfile.mkdtemp(dir=path.parent, prefix=f"jobs-{agent}-"))
        self.jobs = jobs
        self.temporary = jobs / "tmp"
        self.temporary.mkdir()
        jobs.chmod(0o755)
        self._log = jobs / "harbor.txt"
        command = [str(HARBOR), "run", "--yes", "-p", str(path), "-e", "prorl_harbor:Environment"]
        command += ["-a", agent, "-o", str(jobs), "--job-name", "job", *arguments]
        variables = {"TMPDIR": str(self.temporary), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **variables},
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait(self) -> dict[str, list[Trial]]:
        """Returns the trials of each task. Fails if Harbor itself does."""
        try:
            code = self.process.wait(TIMEOUT_S)
        finally:
            self.process.kill()
        assert code == 0, self.log
        trials: dict[str, list[Trial]] = {}
        for file in sorted(self.jobs.glob("job/*/result.json")):
            result = json.loads(file.read_text())
            trials.setdefault(result["task_name"].split("/")[-1], []).append(_trial(result, file))
        return trials

    def files(self) -> list[Path]:
        """Temporary files that it has left."""
        return sorted(self.temporary.rglob("*"))


def _trial(result: dict[str, Any], file: Path) -> Trial:
    verdict, error = result["verifier_result"], result["exception_info"]
    return Trial(
        rewards=None if verdict is None else verdict["rewards"],
        error="" if error is None else f"{error['exception_type']}: {error['exception_message']}",
        directory=file.parent,
    )


def trial(path: Path, *arguments: str, agent: str = "oracle") -> Trial:
    """Runs the one trial of a task."""
    [[only]] = Job(path, *arguments, agent=agent).wait().values()
    return only
