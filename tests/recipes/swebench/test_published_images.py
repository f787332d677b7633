"""Rows in the published forms, graded in a real image of the published form with other content.

The image is a Debian with a real bug's repository at /testbed. The stand-ins for the environments
of conda and of R2E-Gym have the same paths.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from prorl_service.sandbox.base import SandboxProvider
from prorl_service.sandbox.images import ImageCache
from recipes.common.data.fields import Row
from recipes.swebench.data.converter import convert
from recipes.swebench.data.diffs import reversed_patch
from recipes.swebench.grading import admit
from recipes.swebench.patches import Checkout
from recipes.swebench.rows import SweInstance
from tests.recipes.swebench.data import published
from tests.recipes.swebench.data.published import Fields
from tests.recipes.swebench.instances import instance
from tests.sandbox.images.debian import debian_directory
from tests.sandbox.sandboxes import new_provider, started

pytestmark = pytest.mark.processes

ID = "parse-1.20.1"
TESTS = "tests/test_parse.py"
ACTIVATE = "export PATH=/workspace/environment/bin:$PATH PYTHONPATH=/testbed\n"
ON_PATH = """\
#!/bin/sh
export PYTHONPATH=$PWD:$PYTHONPATH
exec /workspace/environment/bin/{} "$@"
"""


class Image:
    """A root file system with the repository at /testbed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        subprocess.run(["cp", "-a", str(debian_directory()), str(root)], check=True)
        (root / "workspace").mkdir()
        checkout = Checkout(instance(ID), root / "workspace")
        shutil.move(checkout.path, root / "testbed")
        self.write("opt/miniconda3/bin/activate", ACTIVATE)
        python = '#!/bin/sh\nPYTHONPATH=/testbed exec /workspace/environment/bin/python "$@"\n'
        self.write("testbed/.venv/bin/python", python)
        self.write("testbed/.venv/.gitignore", "*\n")
        self.write("r2e_tests/test_1.py", "SECRET = 1\n")
        for name in ("app", "project"):
            shutil.copytree(root / "testbed", root / name, symlinks=True)
        for name in ("python", "pytest"):
            self.write(f"usr/local/bin/{name}", ON_PATH.format(name))

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def apply(self, *patches: str) -> None:
        for patch in patches:
            command = ["git", "-c", "safe.directory=*", "apply"]
            subprocess.run(command, cwd=self.root / "testbed", input=patch, text=True, check=True)

    def read(self, name: str) -> str:
        return (self.root / "testbed" / name).read_text()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Yields a directory that containers of any user may read; pytest's own is private."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture(scope="module")
def image(place: Path) -> Image:
    return Image(place / "image")


@pytest.fixture(scope="module")
def fixed(place: Path) -> Image:
    """Returns the image with the fix and its tests applied."""
    image = Image(place / "fixed")
    image.apply(instance(ID).patch, instance(ID).test_patch)
    return image


@pytest.fixture
async def containers() -> AsyncIterator[SandboxProvider]:
    async with new_provider("apptainer") as provider:
        yield provider


async def converted(fields: Fields, image: Image) -> SweInstance:
    row = convert(Row(fields, "row 1"), "recorder", {}).instance
    made = await ImageCache(image.root.with_suffix(".cache")).build("published", str(image.root))
    return row.model_copy(update={"image": str(made.path)})


async def test_a_swe_bench_row_is_admitted(image: Image, containers: SandboxProvider) -> None:
    real = instance(ID)
    fields = published.swe_bench(
        patch=real.patch,
        test_patch=real.test_patch,
        FAIL_TO_PASS=real.FAIL_TO_PASS,
        PASS_TO_PASS=real.PASS_TO_PASS,
    )
    assert (await admit(await converted(fields, image), containers, times=1)).row


OWN_COMMANDS: dict[str, tuple[Callable[..., Fields], Fields]] = {
    "rebench": (published.rebench, {}),
    "rebench_v2": (
        published.rebench_v2,
        {"install_config": {"test_cmd": f"python -m pytest -rA {TESTS}"}},
    ),
    "live": (published.live, {}),
    "pro": (published.pro, {"selected_test_files_to_run": json.dumps([TESTS])}),
}


@pytest.mark.parametrize("layout", OWN_COMMANDS)
@pytest.mark.sampled(2)
async def test_a_row_with_its_own_command_is_admitted(
    layout: str, image: Image, containers: SandboxProvider
) -> None:
    row, changed = OWN_COMMANDS[layout]
    real = instance(ID)
    fields = row(patch=real.patch, test_patch=real.test_patch, **changed)
    for kind in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        if kind in fields:
            fields[kind] = getattr(real, kind)
        else:
            fields[kind.lower()] = str(getattr(real, kind))
    found = await admit(await converted(fields, image), containers, times=1)
    assert found.row, found.reason


async def test_a_swe_smith_row_is_admitted(fixed: Image, containers: SandboxProvider) -> None:
    real = instance(ID)
    fields = published.swe_smith(
        patch=reversed_patch(real.patch),
        FAIL_TO_PASS=real.FAIL_TO_PASS,
        PASS_TO_PASS=real.PASS_TO_PASS,
    )
    assert (await admit(await converted(fields, fixed), containers, times=1)).row


async def test_an_r2e_gym_row_is_admitted(
    image: Image, fixed: Image, containers: SandboxProvider
) -> None:
    real = instance(ID)
    before = dict.fromkeys(real.FAIL_TO_PASS, "FAILED") | dict.fromkeys(real.PASS_TO_PASS, "PASSED")
    names = [id_.partition("::")[2] for id_ in before]
    code = {"test_file_names": ["test_1.py"], "test_file_codes": [fixed.read(TESTS)]}
    diff = published.r2e_commit()["file_diffs"][0]
    diff["header"]["file"]["path"] = "parse.py"
    texts = {"old_file_content": image.read("parse.py"), "new_file_content": fixed.read("parse.py")}
    fields = published.r2e_gym(
        before="".join(f"{how} {id_}\n" for id_, how in before.items()),
        execution=code,
        parsed_commit_content=json.dumps(published.r2e_commit() | {"file_diffs": [diff | texts]}),
        expected_output_json=json.dumps(dict.fromkeys(names, "PASSED")),
    )
    row = await converted(fields, image)
    assert len(row.FAIL_TO_PASS) == len(real.FAIL_TO_PASS)
    assert (await admit(row, containers, times=1)).row


async def test_the_images_tests_are_removed_before_the_model_starts(
    image: Image, containers: SandboxProvider
) -> None:
    row = await converted(published.r2e_gym(), image)
    async with started(containers, image=row.image) as sandbox:
        shell = {
            "command": f"ls /r2e_tests; cd /testbed\n{row.environment.activate}\nls /r2e_tests"
        }
        done = await sandbox.call_tool("bash", shell, timeout_s=30)
    assert done.output.startswith("test_1.py")
    assert "No such file" in done.output
