"""The task that `harbor init` makes, filled in where its comments say so."""

import os
import subprocess
from pathlib import Path

MODES = ("shared", "separate")
BASE = "ubuntu:24.04"
SOLUTION = "echo 42 >/logs/artifacts/answer.txt\n"
TEST = """
[ "$(cat /logs/artifacts/answer.txt)" = 42 ]
echo $((1 - $?)) >/logs/verifier/reward.txt
"""


def template(harbor: Path, tasks: Path, mode: str, *, base: str) -> Path:
    """Makes a task in `tasks`; its Dockerfiles begin with the image `base`."""
    name = f"template-{mode}"
    command = [str(harbor), "init", f"prorl/{name}", "--task", "--no-pytest", "-o", str(tasks)]
    subprocess.run(
        [*command, "--verifier-mode", mode],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    task = tasks / name
    for file in task.rglob("Dockerfile"):
        file.write_text(file.read_text().replace(BASE, base))
    (task / "instruction.md").write_text("Write 42 to /logs/artifacts/answer.txt.\n")
    for path, addition in (("solution/solve.sh", f"\n{SOLUTION}"), ("tests/test.sh", TEST)):
        with (task / path).open("a") as script:
            script.write(addition)
    toml = task / "task.toml"
    settings = toml.read_text().replace('network_mode = "public"', 'network_mode = "no-network"')
    toml.write_text(settings)
    return task
