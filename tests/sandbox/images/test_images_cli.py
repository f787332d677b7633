import os
import re
from pathlib import Path

import pytest

from tests.programs import prorl
from tests.sandbox.images.cache_files import marker
from tests.sandbox.images.dockerfiles.test_shapes import BUILDAH, require
from tests.sandbox.images.oci import Layout, root_file_system

pytestmark = pytest.mark.processes


def run(root: Path, *arguments: str, status: int = 0, stdin: str = "") -> str:
    done = prorl("images", *arguments, input=stdin, env={**os.environ, "PRORL_CACHE": str(root)})
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_images_are_pulled_listed_and_pruned(root: Path, layout: Layout) -> None:
    layout.add("a", tag="a")
    layout.add("b", tag="b")
    a, b = f"oci:{layout.path}:a", f"oci:{layout.path}:b"
    said = run(root, "pull", "-", stdin=f"{a}\n{b}\n")
    assert f"pulling {a}\n" in said
    assert f"done {a} " in said
    assert f"done {b} " in said
    listed = run(root, "list")
    assert all(reference in listed for reference in (a, b))
    assert "would remove 2" in run(root, "prune", "--all", "--dry-run")
    assert "removed 0" in run(root, "prune", "--older-than", "1")
    assert "removed 2" in run(root, "prune", "--budget", "0")
    assert run(root, "list") == ""


def test_a_built_image_is_known_by_its_name(root: Path, tmp_path: Path) -> None:
    tree = root_file_system(tmp_path / "tree", "x")
    assert "local:mine  " in run(root, "build", "mine", str(tree))
    assert "local:mine" in run(root, "list")
    assert "done local:mine " in run(root, "pull", "local:mine")


def test_mistakes_are_reported_in_one_line_with_a_hint(root: Path, layout: Layout) -> None:
    layout.add("a")
    assert "not an image reference: 'X'" in run(root, "pull", "X", status=2)
    assert "either a source or --debian" in run(root, "build", "x", status=2)
    said = run(root, "pull", f"oci:{layout.path}", "local:absent", status=2)
    assert f"done oci:{layout.path}" in said
    assert "prorl: local:absent: there is no image local:absent (make it:" in said


def test_a_directory_with_a_dockerfile_is_built_once(root: Path, tmp_path: Path) -> None:
    require(BUILDAH)
    context = tmp_path / "context"
    context.mkdir()
    (context / "marker").write_text("of a Dockerfile")
    (context / "Dockerfile").write_text("FROM base:1\nCOPY marker /copied\n")
    tree = root_file_system(tmp_path / "tree", "of the base")
    build = ["build", "mine", str(context), "--base", f"base:1={tree}", "--no-network"]
    path = run(root, *build).split()[-1]
    assert marker(Path(path)) == "of the base"
    assert marker(Path(path), "copied") == "of a Dockerfile"
    made_at = Path(path).stat().st_mtime_ns
    assert run(root, *build).split()[-1] == path
    assert Path(path).stat().st_mtime_ns == made_at
    (context / "Dockerfile").write_text("FROM base:1\n\nCOPY absent /\n")
    failed = run(root, *build, status=2)
    assert re.search(r"line 3: COPY absent /: .*/absent.*no such file", failed)
