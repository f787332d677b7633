"""Task directories whose verifiers have the shapes of published ones, on one image with pytest.

The image is this machine's Debian with the pytest that runs the tests, and with stand-ins for what
a verifier would fetch: a plug-in with `--ctrf`, `uvx` in root's home, and `apt-get`.
"""

import asyncio
import atexit
import importlib.metadata
import shutil
import tempfile
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
EXECUTABLES = {
    "usr/local/bin/pytest": """\
#!/usr/bin/python3
import sys
from pytest import console_main
sys.exit(console_main())
""",
    "root/.local/bin/uvx": """\
#!/bin/sh
while [ "$1" != pytest ]; do shift; done
shift
exec "$HOME/.cache/uv/pytest" "$@"
""",
    "usr/bin/apt-get": """\
#!/bin/bash
for file in /etc/apt/apt.conf.d/*; do
    [ ! -e "$file" ] || sed -n 's/.*-Invoke {"\\(.*\\)".*/\\1/p' "$file" | sh
done
""",
}
FILES = {
    "root/.local/bin/env": 'export PATH="$HOME/.local/bin:$PATH"\n',
    f"{SITE}/ctrf_stand_in.py": """\
def pytest_addoption(parser):
    parser.addoption("--ctrf")
""",
    f"{SITE}/ctrf_stand_in-1.dist-info/METADATA": "Name: ctrf-stand-in\nVersion: 1\n",
    f"{SITE}/ctrf_stand_in-1.dist-info/entry_points.txt": "[pytest11]\nctrf = ctrf_stand_in\n",
}
ANSWERED = """\
from pathlib import Path

def test_answer():
    assert Path("answer.txt").read_text() == Path("/tests/expected.txt").read_text()
"""
PASSED = """
if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
ANSWER = "echo 42 > answer.txt"
MODULES = "echo 'import helper; helper.double()' > main.py\n" + (
    "printf 'import sys\\ndef double(): print(2 * int(sys.argv[1]))\\n' > helper.py"
)


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    test: str
    solution: str = ANSWER
    workdir: str = "/app"

    def directory(self, parent: Path) -> TaskDirectory:
        """Writes the task."""
        path = parent / self.name
        texts = {
            "task.toml": TOML.format(image=image(), workdir=self.workdir),
            "instruction.md": "Solve it.",
            "tests/test.sh": self.test.lstrip(),
            "tests/test_outputs.py": ANSWERED,
            "tests/expected.txt": "42\n",
            "solution/solve.sh": f"#!/bin/bash\n{self.solution}\n",
        }
        for name, text in texts.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        return TaskDirectory.read(path)


SHAPES = (
    Shape("pytest", f"#!/bin/bash\npytest /tests/test_outputs.py -rA{PASSED}"),
    Shape("python-m-pytest", f"#!/bin/bash\npython3 -m pytest /tests/test_outputs.py{PASSED}"),
    Shape(
        "set-e",
        "#!/bin/bash\nset -e\npytest /tests/test_outputs.py\necho 1 > /logs/verifier/reward.txt\n",
    ),
    Shape(
        "uvx",
        "#!/bin/bash\nsource $HOME/.local/bin/env\n"
        "uvx -p 3.13 -w pytest==8.4.1 -w pytest-json-ctrf==0.3.5 pytest"
        f" --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA{PASSED}",
        workdir="/root",
    ),
    Shape(
        "apt-get",
        "#!/bin/bash -l\nset -a; [ ! -e /etc/environment ] || . /etc/environment; set +a\n"
        "apt-get update && apt-get install -y python3-pytest\n"
        f"cp /tests/* . && pytest test_outputs.py{PASSED}",
    ),
    Shape(
        "compare",
        "#!/bin/bash\ngit status > /dev/null 2>&1; git diff > /dev/null 2>&1\n"
        f"diff answer.txt /tests/expected.txt{PASSED}",
    ),
    Shape(
        "program",
        "#!/bin/sh\nreward=1\nfor number in 1 21; do\n"
        '    [ "$(python3 main.py $number)" = $((2 * number)) ] || reward=0\n'
        "done\necho $reward > /logs/verifier/reward.txt\n",
        solution=MODULES,
    ),
)


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
