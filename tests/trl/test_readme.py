"""The README's TRL snippet, run as it is printed."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.client import RolloutClient
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from tests import real_engines

pytestmark = pytest.mark.processes

README = Path(__file__).parents[2] / "README.md"
SNIPPET = re.compile(r"## With TRL\n+(?:<!--[^\n]*-->\n)?```python\n(.*?)```", re.DOTALL)
MODEL = "Qwen/Qwen3-4B"
PORT = 8080
CONTEXT = 768
"""Tokens of the engine's context: a random model fills any."""
STEPS = 3
"""Number of steps: three epochs of one task."""
WITHOUT_GPU = """
from transformers import training_args

training_args.is_torch_bf16_gpu_available = lambda: True  # autocast does bf16 on a CPU, too
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Builds a tiny model where transformers first looks for one of this name."""
    directory = tmp_path / MODEL
    build_tiny_model(directory, tie_word_embeddings=True)
    return directory


@pytest.fixture(params=real_engines.ENGINES)
def service(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> Iterator[str]:
    """Starts a service at the snippet's port, or at another if that port is taken."""
    log = tmp_path / "engine.log"
    with (
        real_engines.engine(request.param, model, log=log, max_model_len=CONTEXT) as engine,
        local.service([engine.url], log=tmp_path / "service.log", port=_port()) as service,
    ):
        yield service.url


def _port() -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return local.free_port()
    return PORT


def test_the_snippet_trains_as_it_is_printed(service: str, tmp_path: Path) -> None:
    found = SNIPPET.search(README.read_text())
    assert found is not None
    snippet = tmp_path / "snippet.py"
    printed = found[1].replace(f":{PORT}", f":{service.rpartition(':')[2]}")
    snippet.write_text(WITHOUT_GPU + printed)
    ended = subprocess.run(
        [sys.executable, str(snippet)],
        cwd=tmp_path,
        env=os.environ | {"ACCELERATE_USE_CPU": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    with RolloutClient(service) as client:
        status = client.status()
    # A random model is hardly ever right: weights that no step has changed are not sent again.
    assert status.policy_version in range(1, STEPS + 1)
    assert f"'step': {STEPS}" in ended.stdout or "train_runtime" in ended.stdout
