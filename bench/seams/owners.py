"""A second training on the service of a first one, TRL and VeRL in all orders: how it ends, and
whether the first one trains as if it were alone.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import result
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.inference.engine.tiny import build_tiny_model
from tests.trl.training import SERVICE_OPTIONS

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900
PYTHONPATH = os.pathsep.join(str(ROOT / path) for path in ("", "plugins/trl", "plugins/verl"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": PYTHONPATH}
Process = subprocess.Popen[bytes]


def measure() -> result.Part:
    rows = []
    for first in ("TRL", "VeRL"):
        with TemporaryDirectory() as name:
            rows += _beside(first, Path(name))
    mixed = sum(int(str(row["mixed_policy_steps"])) for row in rows)
    slowest = max(float(str(row["second_ends_s"])) for row in rows)
    return rows, {"mixed_policy_steps": mixed, "second_training_ends_s": slowest}


def _beside(first: str, directory: Path) -> list[dict[str, object]]:
    """Starts a training of each kind on the service of one that trains."""
    model = directory / "model"
    build_tiny_model(model, tie_word_embeddings=True, initializer_range=0.1)
    alone = _steps_of(first, directory, model, "alone", ())
    refused: list[dict[str, object]] = []
    seconds = [("TRL", directory / "second-TRL"), ("VeRL", directory / "second-VeRL")]
    together = _steps_of(first, directory, model, "first", seconds, refused)
    mixed = sum(one != other for one, other in zip(alone, together, strict=True))
    same = {"steps": len(together), "mixed_policy_steps": mixed}
    return [{"first": first, **one, **same} for one in refused]


def _steps_of(
    kind: str,
    directory: Path,
    model: Path,
    name: str,
    seconds: "list[tuple[str, Path]] | tuple[()]",
    refused: list[dict[str, object]] | None = None,
) -> list[object]:
    """Returns what a training did in each step, while others are refused beside it."""
    with _service(kind, directory, model, name) as url:
        process = _start(kind, url, model, directory / name)
        with RolloutClient(url) as client:
            while client.status().training is None:
                assert process.poll() is None, (directory / name / "log").read_text()[-3000:]
                time.sleep(0.1)
        for other, output in seconds:
            began = time.monotonic()
            second = _start(other, url, model, output)
            code = second.wait(TIMEOUT_S)
            lines = (output / "log").read_text().strip().splitlines()
            began_s = _began(output, time.monotonic() - began)
            assert refused is not None
            refused.append(
                {
                    "second": other,
                    "second_exit": code,
                    "second_ends_s": round(began_s, 2),
                    "whole_process_s": round(time.monotonic() - began, 1),
                    "said": next(line for line in lines if "pid " in line)[:200],
                }
            )
        (directory / name / "go").touch()
        assert process.wait(TIMEOUT_S) == 0, (directory / name / "log").read_text()[-3000:]
    return [
        json.loads(line) for line in (directory / name / "steps.jsonl").read_text().splitlines()
    ]


def _began(output: Path, whole_s: float) -> float:
    """Returns the time from the start of training to the end, where the program tells its start;
    else that of the whole process."""
    began = output / "began"
    return time.time() - began.stat().st_mtime if began.exists() else whole_s


@contextmanager
def _service(kind: str, directory: Path, model: Path, name: str) -> Iterator[str]:
    log = directory / f"{name}.service.log"
    if kind == "VeRL":
        options = ["--sandbox", "bubblewrap", "--agent", "tests.verl.shell_agent:ShellAgent"]
        with local.service([], log=log, options=options) as service:
            yield service.url
        return
    with (
        local.engine(model, log=directory / f"{name}.engine.log") as engine,
        local.service([engine.url], log=log, options=SERVICE_OPTIONS) as service,
    ):
        yield service.url


def _start(kind: str, url: str, model: Path, output: Path) -> Process:
    output.mkdir()
    if kind == "TRL":
        python, module, arguments = ".venv", "tests.trl.solo", [url, str(model), str(output), "3"]
    else:
        python, module, arguments = ".venv-verl", "tests.verl.solo", [url, str(output)]
    command = [str(ROOT / python / "bin/python"), "-m", module, *arguments]
    with (output / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT, cwd=ROOT)
