"""Tests of Harbor's environment, collected only where Harbor is installed.

`scripts/test-harbor` runs them.
"""

import os
import shutil
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

try:
    version("harbor")  # an import would find this directory
except PackageNotFoundError:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries that it imports
        import harbor.environments.base
        import harbor.models.trial.paths  # noqa: F401

from tests.harbor.environments import Making
from tests.sandbox.images.debian import debian_image

TASKS = Path(__file__).parent / "tasks"


@pytest.fixture(autouse=True, scope="session")
def own_temporary_directory() -> Iterator[None]:
    """Keeps leftovers of this run's sandboxes apart from those of other test runs."""
    with tempfile.TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        os.chmod(path, 0o711)  # containers may be another user's
        patch.setattr(tempfile, "tempdir", path)
        yield


@pytest.fixture
def tmp_path(own_temporary_directory: None) -> Path:
    """Replaces pytest's, which every other run of pytest closes to the containers' user."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    return directory


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A SIF file whose path no other test uses: processes of its containers can be found by it."""
    source, path = debian_image(), tmp_path / "image.sif"
    try:
        path.hardlink_to(source)
    except OSError:  # another file system
        shutil.copy(source, path)
    return path


@pytest.fixture
def tasks(tmp_path: Path, image: Path) -> Path:
    """A directory of tasks, for tests to change."""
    directory = tmp_path / "tasks"
    shutil.copytree(TASKS, directory)
    for file in directory.glob("*/task.toml"):
        file.write_text(file.read_text().replace("@IMAGE@", str(image)))
    return directory


@pytest.fixture
async def making(tmp_path: Path, image: Path) -> AsyncIterator[Making]:
    """Makes environments in this process, which are stopped in the end."""
    made = Making(tmp_path, image)
    yield made
    await made.close()
