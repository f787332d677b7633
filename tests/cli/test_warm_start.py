"""`prorl warm-start`: one's own replies become the model's."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.tokens.chat import ChatFormat
from tests.cli.called import called
from tests.docs.printed import blocks

pytestmark = pytest.mark.processes
REPLY = "It is \\boxed{42}."
TASK = {
    "task_id": "t1",
    "agent": "math",
    "messages": [{"role": "user", "content": "What is 6 times 7?"}],
    "data": {"answer": "42"},
    "solution": REPLY,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    build_tiny_model(directory, initializer_range=0.02)
    return directory


@pytest.fixture(scope="module")
def rollouts(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs what the quickstart prints."""
    directory = tmp_path_factory.mktemp("tried")
    (directory / "tasks.jsonl").write_text(json.dumps(TASK))
    *_, script = blocks("quickstart.md", "sh")
    prorl = f'prorl() {{ {shlex.quote(sys.executable)} -m prorl_service.cli "$@"; }}'
    lines = f"{prorl}\n{script.replace('MODEL', str(model))}"
    subprocess.run(["bash", "-euc", lines], cwd=directory, check=True)
    assert (directory / "started" / "model.safetensors").is_file()
    return directory / "good.jsonl"


def test_a_model_says_what_was_replied(model: Path, rollouts: Path, tmp_path: Path) -> None:
    out = tmp_path / "started"
    extent = ("--steps", 60, "--batch-size", 2, "--learning-rate", 6e-3)
    done = called("warm-start", model, rollouts, "--out", out, "--min-reward", 1, *extent)
    assert done.returncode == 0, done.stderr
    assert "imitates 1 segments" in done.stdout
    segment = json.loads(rollouts.read_text())["trajectory"]["segments"][0]
    policy = Qwen3ForCausalLM.from_pretrained(out, dtype=torch.float32)
    prompt = torch.tensor([_ids(segment["prompt_ids"])])
    said = policy.generate(prompt, do_sample=False, max_new_tokens=40)[0, prompt.shape[1] :]
    assert ChatFormat.load(out).decode(said.tolist(), stopped=True) == REPLY


def _ids(packed: object) -> list[int]:
    assert isinstance(packed, list)
    return packed


def test_what_cannot_be_imitated_is_said_before_any_work(
    model: Path, rollouts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    refused = called("warm-start", model, rollouts, "--out", out, "--min-reward", 2)
    assert refused.returncode == 2
    assert f"there is nothing to imitate in {rollouts}" in refused.stderr
    there = called("warm-start", model, rollouts, "--out", tmp_path)
    assert "is there already" in there.stderr
    absent = called("warm-start", tmp_path / "nowhere", rollouts, "--out", out)
    assert f"cannot load a tokenizer from {tmp_path}/nowhere" in absent.stderr
    small = tmp_path / "small"
    build_tiny_model(small, vocab_size=256 + 9)
    other = called("warm-start", small, rollouts, "--out", out)
    assert f"the rollouts are not in the tokens of {small}" in other.stderr
    assert not out.exists()
