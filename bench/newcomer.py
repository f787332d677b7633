"""From the wheel to the quickstart's first rollout, in an environment that has nothing else."""

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from documentation.markdown import Page
from documentation.pages import ROOT

QUICKSTART = ROOT / "docs/quickstart.md"
REWARD = "reward | 1\n"


def minutes_to_first_rollout() -> float:
    """Returns minutes from an empty directory to the reward of a rollout in a sandbox. The wheel
    is built before; packages come from wherever pip takes them here. Raises `AssertionError`."""
    with TemporaryDirectory(prefix="prorl-bench-") as temporary:
        directory = Path(temporary)
        wheel = _wheel(directory / "wheel")
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
        python = str(directory / "venv/bin/python")
        subprocess.run([python, "-m", "pip", "install", "-qq", f"{wheel}[all]"], check=True)
        printed = _first_rollout(directory)
        seconds = time.monotonic() - began
    assert REWARD in printed, printed
    return seconds / 60


def _wheel(directory: Path) -> Path:
    pip = [sys.executable, "-m", "pip"]
    subprocess.run(
        [*pip, "wheel", "-qq", "--no-deps", f"--wheel-dir={directory}", ROOT], check=True
    )
    [wheel] = directory.glob("*.whl")
    return wheel


def _first_rollout(directory: Path) -> str:
    """Does what the quickstart says: writes its files and runs its first command on them."""
    page = Page.read(QUICKSTART)
    blocks = [one for one in page.blocks if one.marker == "tested"]
    task, replies, command = blocks[:3]
    (directory / "task.json").write_text(task.text)
    (directory / "replies.jsonl").write_text(replies.text)
    program, *arguments = command.text.split()
    done = subprocess.run(
        [directory / "venv/bin" / program, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr
