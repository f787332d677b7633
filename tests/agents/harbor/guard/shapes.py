"""Task directories whose verifiers have the shapes of published ones (`shapes.toml`), on one image.

The image is this machine's Debian with the pytest that runs the tests, and with stand-ins for what
a verifier would fetch: a plug-in with `--ctrf`, `uvx` in root's home, and `apt-get`.
"""

import asyncio
import atexit
import importlib.metadata
import shutil
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prorl_service.agents.harbor.directory.reading import TaskDirectory
from prorl_service.sandbox.images import ImageCache
from tests.agents.harbor.directories import TOML
from tests.sandbox.images.debian import debian_directory

PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
SITE = "usr/local/lib/python3.11/dist-packages"
_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
EXECUTABLES: dict[str, str] = _DATA["executables"]
FILES: dict[str, str] = {path.replace("$site", SITE): text for path, text in _DATA["files"].items()}


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    test: str
    solution: str = "echo 42 > answer.txt"
    workdir: str = "/app"

    def directory(self, parent: Path) -> TaskDirectory:
        """Writes the task."""
        path = parent / self.name
        texts = {
            "task.toml": TOML.format(image=image(), workdir=self.workdir),
            "instruction.md": "Solve it.",
            "tests/test.sh": self.test.replace("$passed", _DATA["passed"]),
            "tests/test_outputs.py": _DATA["answered"],
            "tests/expected.txt": "42\n",
            "solution/solve.sh": f"#!/bin/bash\n{self.solution}\n",
        }
        for name, text in texts.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        return TaskDirectory.read(path)


SHAPES = tuple(Shape(**row) for row in _DATA["shapes"])


@cache
def image() -> Path:
    """Returns a SIF file; callers may be inside an event loop."""
    parent = Path(tempfile.mkdtemp(prefix="prorl-harbor-guard-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    parent.chmod(0o755)
    _make(parent / "root")
    building = ImageCache(parent / "cache").build("pytest", str(parent / "root"))
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, building).result().path


def _make(root: Path) -> None:
    shutil.copytree(debian_directory(), root, symlinks=True)
    for package in PACKAGES:
        distribution = importlib.metadata.distribution(package)
        for file in distribution.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                _write(root / SITE / file, Path(str(distribution.locate_file(file))).read_bytes())
    pytest = EXECUTABLES["usr/local/bin/pytest"]
    for name, text in {**EXECUTABLES, "root/.cache/uv/pytest": pytest, **FILES}.items():
        _write(root / name, text.encode())
        if text.startswith("#!"):
            (root / name).chmod(0o755)


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
