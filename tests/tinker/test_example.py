"""examples/train_tinker.py, as its first lines say, on a tiny model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prorl_service import local

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]


@pytest.mark.on_demand
def test_the_example_trains_and_saves(server_url: str, policy: Path, tmp_path: Path) -> None:
    options = ["--sandbox", "process"]
    with local.service([], log=tmp_path / "service.log", options=options) as service:
        ended = subprocess.run(
            [sys.executable, ROOT / "examples/train_tinker.py", policy],
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins/tinker'}",
                "PRORL_URL": service.url,
                "TINKER_BASE_URL": server_url,
                "TINKER_API_KEY": "tml-dummy",
                "STEPS": "1",
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.splitlines()[-1].startswith("tinker://")
