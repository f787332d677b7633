"""Training that is never wrong: TRL from a base model, with and without LoRA, with a reward
function of the user's, a fifth of the rollouts failing by every blame, `kill -9` of the service and
of the trainer. Each step's logprobs and advantages are compared.
"""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import result
from prorl_service import local
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from tests.faults.processes import port_to_come_back_to
from tests.trl.base_model import with_split_eos

STEPS = 8
SERVICE_DIES, TRAINER_DIES = 3, 5
"""Steps after which the service, and the trainer, are killed."""
TIMEOUT_S = 900
AGENT = "bench.seams.faulty_agent:FaultyAgent"


def measure() -> result.Part:
    rows = [row for kind in ("full", "lora") for row in _training(kind)]
    return rows, {
        "logprob_diff_max": max(float(str(row["logprob_diff_max"])) for row in rows),
        "advantage_diff_max": max(float(str(row["advantage_diff_max"])) for row in rows),
    }


def _training(kind: str) -> list[dict[str, object]]:
    with TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        build_tiny_model(directory / "tiny", tie_word_embeddings=True, initializer_range=0.1)
        model = with_split_eos(directory / "tiny", directory / "model")
        engine = stack.enter_context(local.engine(model, log=directory / "engine.log"))
        port = port_to_come_back_to()
        options = ["--sandbox", "process", "--agent", AGENT, "--max-attempts", "1", "--resume"]
        options += ["--journal", str(directory / "journal.sqlite")]
        log = directory / "service.log"
        url = f"http://127.0.0.1:{port}"
        service = local.service([engine.url], log=log, port=port, options=options)
        running = stack.enter_context(service)
        trainer = _trainer(url, model, directory, kind)
        _wait_for(directory, SERVICE_DIES, trainer)
        running.kill()
        service = local.service([engine.url], log=log, port=port, options=options)
        stack.enter_context(service)
        _wait_for(directory, TRAINER_DIES, trainer)
        trainer.kill()
        trainer.wait()
        trainer = _trainer(url, model, directory, kind)
        assert trainer.wait(TIMEOUT_S) == 0, (directory / "trainer.log").read_text()[-4000:]
        return [{"kind": kind, **step} for step in _steps(directory)]


def _trainer(url: str, model: Path, directory: Path, kind: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "bench.seams.trainer", url, str(model), str(directory), kind]
    with (directory / "trainer.log").open("ab") as log:
        return subprocess.Popen([*command, str(STEPS)], stdout=log, stderr=log, env=os.environ)


def _steps(directory: Path) -> list[dict[str, object]]:
    path = directory / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _wait_for(directory: Path, steps: int, trainer: "subprocess.Popen[bytes]") -> None:
    while len(_steps(directory)) < steps:
        try:
            trainer.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError((directory / "trainer.log").read_text()[-4000:])
