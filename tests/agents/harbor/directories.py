"""Task directories for tests, written from their parts, on the tests' own Debian image."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from prorl_service.agents.harbor.agent import HarborAgent
from prorl_service.agents.harbor.directory.reading import TaskDirectory
from prorl_service.schemas import Limits
from prorl_service.testing import play
from prorl_service.testing.playing import Played
from prorl_service.testing.replies import Reply, call
from tests.sandbox.images.debian import debian_image

LIMITS = Limits(eval_timeout_s=200, tool_timeout_s=60)
TEST = """\
#!/bin/bash
reward=0
[ "$(cat answer.txt 2>/dev/null)" = 42 ] && reward=1
echo $reward > /logs/verifier/reward.txt
"""
TOML = """\
schema_version = "1.4"
[verifier]
timeout_sec = 60.0
[environment]
docker_image = "{image}"
workdir = "{workdir}"
"""
SOLVE = call("bash", command="echo 42 > answer.txt")
DONE = "Done."
BASE = f"debian:bookworm-slim={debian_image()}"
"""Value of `--image-base`."""
SOLUTION = {"solution/solve.sh": "#!/bin/bash\necho 42 > answer.txt\n"}


def prorl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prorl_service.cli", "harbor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def directory(
    path: Path, *, toml: str = "", test: str = TEST, files: Mapping[str, str] = {}
) -> TaskDirectory:
    """Writes a task of one step; `toml` is added to the usual one, `files` by their paths."""
    texts = {
        "task.toml": TOML.format(image=debian_image(), workdir="/app") + toml,
        "instruction.md": "Write 42 to answer.txt.",
        "tests/test.sh": test,
        **files,
    }
    for name, text in texts.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return TaskDirectory.read(path)


async def played(task: TaskDirectory, *replies: Reply) -> Played:
    """Plays one rollout whose replies end with a final answer."""
    return await play(HarborAgent, task.task(), [*replies, DONE], limits=LIMITS)
