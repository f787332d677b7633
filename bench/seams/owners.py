"""A second training on the service of a first one, TRL and VeRL in all orders: how it ends, and
whether the first one trains as if it were alone. Seconds to its end begin after its imports.
"""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import result
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.inference.reference_engine.tiny import build_tiny_model
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
    alone, _ = _run(first, directory / "alone", model)
    together, refused = _run(first, directory / "first", model, seconds=("TRL", "VeRL"))
    mixed = sum(one != other for one, other in zip(alone, together, strict=True))
    same = {"steps": len(together), "mixed_policy_steps": mixed}
    return [{"first": first, **one, **same} for one in refused]


def _run(
    kind: str, output: Path, model: Path, *, seconds: Sequence[str] = ()
) -> tuple[list[object], list[dict[str, object]]]:
    """Returns what a training did in each step, and how others ended that began beside it."""
    with _service(kind, output, model) as url:
        process = _start(kind, url, model, output)
        with RolloutClient(url) as client:
            while client.status().training is None:
                assert process.poll() is None, (output / "log").read_text()[-3000:]
                time.sleep(0.1)
        refused = [_refused(one, url, model, output / f"second-{one}") for one in seconds]
        (output / "go").touch()
        assert process.wait(TIMEOUT_S) == 0, (output / "log").read_text()[-3000:]
    steps = [json.loads(line) for line in (output / "steps.jsonl").read_text().splitlines()]
    return steps, refused


def _refused(kind: str, url: str, model: Path, output: Path) -> dict[str, object]:
    code = _start(kind, url, model, output).wait(TIMEOUT_S)
    seconds = time.time() - (output / "began").stat().st_mtime
    return {
        "second": kind,
        "second_exit": code,
        "second_ends_s": round(seconds - (_imports_s() if kind == "VeRL" else 0), 2),
        "said": _said(output),
    }


def _said(output: Path) -> str:
    lines = (output / "log").read_text().splitlines()
    return next(line for line in lines if "pid " in line)[:200]


def _imports_s() -> float:
    """Returns how long VeRL's stock command imports, before it reads its options."""
    began = time.monotonic()
    command = [str(ROOT / ".venv-verl/bin/python"), "-W", "ignore", "-c"]
    subprocess.run([*command, "import verl.trainer.main_ppo"], check=True, env=ENVIRONMENT)
    return time.monotonic() - began


@contextmanager
def _service(kind: str, output: Path, model: Path) -> Iterator[str]:
    log = output.with_suffix(".service.log")
    if kind == "VeRL":
        options = ["--sandbox", "bubblewrap", "--agent", "tests.verl.shell_agent:ShellAgent"]
        with local.service([], log=log, options=options) as service:
            yield service.url
        return
    with (
        local.engine(model, log=output.with_suffix(".engine.log")) as engine,
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
