"""A Ray cluster that asks for its token."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.clusters import CHECKOUT, STORE, head_port
from tests.ray.loads import until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.on_demand]

HOST = "127.0.0.9"


@pytest.fixture
def variables(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Starts a head; returns the variables with which it can be used."""
    token, address = tmp_path / "token", f"{HOST}:{head_port()}"
    temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # socket paths must be short
    token.write_text("0123456789abcdef" * 2)
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_ADDRESS": address}
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *(f"--node-ip-address={HOST}", "--port", address.rpartition(":")[2], "--num-cpus=1"),
        f"--object-store-memory={STORE['object_store_memory']}",
        *("--include-dashboard=false", f"--temp-dir={temporary}"),
    ]
    with (tmp_path / "ray.out").open("wb") as output:
        head = subprocess.Popen(command, env=os.environ | own, stdout=output, stderr=output)
    try:
        yield own
    finally:
        head.terminate()
        head.wait()
        shutil.rmtree(temporary, ignore_errors=True)


def status(variables: dict[str, str]) -> str:
    command = [sys.executable, "-m", "prorl_service.cli", "ray", "status"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    asked = subprocess.run(
        command,
        env=environment | variables,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout + asked.stderr


def test_it_is_used_with_its_token_only(variables: dict[str, str]) -> None:
    until(lambda: "no run" in status(variables))
    address = variables["RAY_ADDRESS"]
    answer = status({"RAY_ADDRESS": address})
    assert f"the Ray cluster at {address} takes no connection without its token" in answer
    assert "RAY_AUTH_MODE=token" in answer
    assert "Traceback" not in answer


def test_nothing_listens_there() -> None:
    address = f"{HOST}:{head_port()}"
    answer = status({"RAY_ADDRESS": address})
    assert f"there is no Ray cluster at {address}: [Errno 111] Connection refused" in answer
