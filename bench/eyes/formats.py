"""What leaves the service: ATIF documents, rows for supervised fine-tuning, spans of a trace.

Each is given to the tool of others that reads it: the `atif` package and Harbor's own classes,
TRL's `SFTTrainer`, an OpenTelemetry collector. The rollouts are those of a real service.
"""

import json
import subprocess
import sys
from pathlib import Path

from atif import Trajectory
from pydantic import ValidationError

from bench.load import contenders, ours
from bench.load.agent import LoadAgent
from bench.load.workload import MODEL_CALLS, TOOL_TURNS
from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from tests.exports.made_rollouts import Made, make
from tests.traces.collector import collector

ROOT = Path(__file__).parents[2]
HARBOR = ROOT / ".venv-harbor" / "bin" / "python"
TRACED = 64
VOCAB_SIZE = 1024
SFT_STEPS = 2

READ_BY_HARBOR = """
import sys
from harbor.models.trajectories import Trajectory
print(sum(bool(Trajectory.model_validate_json(line)) for line in open(sys.argv[1])))
"""

Row = dict[str, object]


def measure(directory: Path) -> list[Row]:
    rollouts = made(directory)
    return [atif(rollouts, directory), sft(rollouts, directory), spans(directory)]


def made(directory: Path) -> Made:
    """Runs a service whose rollouts have reasoning, calls, broken calls, segments, failures."""
    model = directory / "exported-model"
    build_tiny_model(model, vocab_size=VOCAB_SIZE)
    return make(model, directory)


def atif(rollouts: Made, directory: Path) -> Row:
    """Exports documents and has two readers validate them."""
    out = directory / "atif"
    _export(rollouts, "atif", out)
    texts = [file.read_text() for file in sorted(out.iterdir())]
    together = directory / "documents.jsonl"
    together.write_text("".join(f"{json.dumps(json.loads(text))}\n" for text in texts))
    command = [str(HARBOR), "-c", READ_BY_HARBOR, str(together)]
    by_harbor = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        "what": "ATIF 1.8",
        "documents": len(texts),
        "valid_by_atif": sum(map(_is_valid, texts)),
        "valid_by_harbor": int(by_harbor.stdout),
    }


def _is_valid(text: str) -> bool:
    try:
        Trajectory.model_validate_json(text)
    except ValidationError:
        return False
    return True


def sft(rollouts: Made, directory: Path) -> Row:
    """Exports rows and trains on the file as it is."""
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer

    file = directory / "rows.jsonl"
    _export(rollouts, "sft", file)
    rows = load_dataset("json", data_files=str(file), split="train", cache_dir=str(directory))
    settings = SFTConfig(
        output_dir=str(directory / "sft"),
        max_steps=SFT_STEPS,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    trainer = SFTTrainer(model=str(rollouts.model), args=settings, train_dataset=rows)
    trainer.train()
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    return {"what": "SFT", "rows": len(rows), "steps_trained": len(losses)}


def spans(directory: Path) -> Row:
    """Runs rollouts of eleven model calls and ten tool calls, and counts their spans."""
    model = directory / "traced-model"
    build_tiny_model(model, vocab_size=VOCAB_SIZE)
    agent = f"{LoadAgent.__module__}:{LoadAgent.__qualname__}"
    with collector() as collected, contenders.engine(model, 1) as engine:
        options = ["--agent", agent, "--sandbox", "process", "--otel-endpoint", collected.url]
        log = directory / "traced.log"
        with (
            local.service([engine], log=log, options=options) as service,
            RolloutClient(service.url) as client,
        ):
            ours.run(client, ours.Kind("process"), TRACED)
            received = collected.wait_for(TRACED)
    return {
        "what": "OpenTelemetry",
        "rollouts": TRACED,
        "model_calls_each": MODEL_CALLS,
        "tool_calls_each": TOOL_TURNS,
        "spans_per_rollout": len(received) / TRACED,
    }


def _export(rollouts: Made, kind: str, out: Path) -> None:
    command = [sys.executable, "-m", "prorl_service.cli", "export", "--format", kind]
    options = ["--tokenizer", str(rollouts.model), "--out", str(out), str(rollouts.journal)]
    subprocess.run([*command, *options], check=True, cwd=ROOT)
