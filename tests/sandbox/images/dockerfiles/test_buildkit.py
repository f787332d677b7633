"""What is asked of Apptainer with BuildKit, and what is made of its answers.

Apptainer 1.5 and buildkitd are not run here: programs that write down how they were called stand
in for both.
"""

from pathlib import Path

import pytest

from prorl_service.errors import TaskError
from prorl_service.sandbox import archives
from prorl_service.sandbox.images import ImageCache, context_archive
from prorl_service.sandbox.images.dockerfiles.buildkit import BuildKit
from prorl_service.sandbox.images.dockerfiles.ladder import Ladder
from tests.sandbox.images.oci import root_file_system

pytestmark = pytest.mark.processes

APPTAINER = """#!/bin/sh
[ "$1" = --version ] && exec echo apptainer version 1.5.2
for definition in "$@"; do :; done
cp "$definition" "$0.asked"
cat "$0.fails" >&2
exit 255
"""
BUILDCTL = '#!/bin/sh\n[ "$*" = "debug workers" ]\n'
FAILURE = """#8 0.1 the last words
Dockerfile:3
--------------------
   3 | >>> RUN false
--------------------
ERROR: failed to solve: process "/bin/sh -c false" did not complete successfully: exit code: 1
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in {"apptainer": APPTAINER, "buildctl": BUILDCTL}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(archives, "cache_root", lambda: tmp_path / "service")
    return programs


def context(directory: Path, text: str) -> str:
    directory.mkdir()
    (directory / "Dockerfile").write_text(text)
    return context_archive(directory)


async def test_it_works_with_a_daemon_and_a_recent_apptainer(
    programs: Path, tmp_path: Path
) -> None:
    assert await BuildKit().trial(tmp_path) is None
    (programs / "buildctl").write_text("#!/bin/sh\nexit 1\n")
    assert await BuildKit().trial(tmp_path) == "no buildkitd answers: set BUILDKIT_HOST"
    (programs / "apptainer").write_text("#!/bin/sh\necho apptainer version 1.4.5\n")
    assert await BuildKit().trial(tmp_path) == "needs Apptainer 1.5, this is 1.4"


async def test_a_command_that_fails_is_named_with_its_line(
    programs: Path, root: Path, tmp_path: Path
) -> None:
    (programs / "apptainer.fails").write_text(FAILURE)
    cache = ImageCache(root, ladder=Ladder((BuildKit(),)))
    with pytest.raises(TaskError, match=r"line 3: RUN false: (.|\n)*the last words"):
        await cache.get(context(tmp_path / "one", "FROM a.example/b\n\nRUN false\n"))
    asked = (programs / "apptainer.asked").read_text().splitlines()
    assert asked[0] == "Bootstrap: buildkit"
    assert asked[1].startswith(f"From: {root}/tmp/")
    assert asked[1].endswith("/context")


async def test_a_file_whose_images_are_here_is_left_to_others(
    programs: Path, root: Path, tmp_path: Path
) -> None:
    tree = root_file_system(tmp_path / "tree", "base")
    reference = context(tmp_path / "one", "FROM base\nRUN true\n")
    with pytest.raises(TaskError, match="does not have base of the cache"):
        await ImageCache(root, bases=[f"base={tree}"], ladder=Ladder((BuildKit(),))).get(reference)
