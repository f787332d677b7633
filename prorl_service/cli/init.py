"""`prorl init`: a project of one's own, of files that a wheel brings and a checkout has in
`examples/project`. Installs nothing.
"""

import re
import shlex
from pathlib import Path

from prorl_service.cli.program import brought
from prorl_service.errors import ProRLError

FILES = (
    "README.md",
    "agent.py",
    "pyproject.toml",
    "start.py",
    "tasks.jsonl",
    "test_agent.py",
    "train.py",
)
NAME = "PROJECT"
"""What stands for the project's name in these files."""


def init(directory: Path, /) -> None:
    """Begin a project of your own: an agent with a tool, tasks, a test, a training with TRL.

    It runs as it is, on the CPU. Its README.md has the commands.

    Parameters
    ----------
    directory
        New or empty directory.
    """
    name = re.sub("[^a-z0-9]+", "-", directory.resolve().name.lower()).strip("-") or "my-agent"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise ProRLError(f"{directory} is not empty", hint="name a new directory")
        for file in FILES:
            text = (brought("project", "examples/project") / file).read_text()
            (directory / file).write_text(text.replace(NAME, name))
    except OSError as error:
        raise ProRLError(f"cannot write to {directory}: {error.strerror}") from None
    print(f"made {', '.join(FILES)}; README.md says what to run, first:")
    print(f"  cd {shlex.quote(str(directory))} && pytest")
