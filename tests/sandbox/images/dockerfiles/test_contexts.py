"""Build contexts: archives that depend on their content only."""

import os
from pathlib import Path

import pytest

from prorl_service.errors import TaskError
from prorl_service.sandbox.archives import store_archive
from prorl_service.sandbox.images import context_archive, parse
from prorl_service.sandbox.images.dockerfiles.context import unpack


@pytest.fixture(autouse=True)
def _own_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRORL_CACHE", str(tmp_path / "service"))


def context(path: Path, **files: str) -> Path:
    path.mkdir()
    for name, content in {"Dockerfile": "FROM scratch\n", **files}.items():
        (path / name).write_text(content)
    return path


def test_the_same_content_has_the_same_reference(tmp_path: Path) -> None:
    one = context(tmp_path / "one", a="a", b="b")
    two = context(tmp_path / "two", b="b", a="a")
    os.utime(two / "a", (0, 0))
    (two / "a").chmod(0o664)
    reference = context_archive(one)
    assert context_archive(two) == reference
    assert str(parse(reference)) == reference
    (two / "a").chmod(0o755)
    assert context_archive(two) != reference


def test_a_context_comes_back_as_it_was(tmp_path: Path) -> None:
    one = context(tmp_path / "one", kept="kept", left_out="x")
    (one / ".dockerignore").write_text("left_out\n")
    (one / "dir").mkdir()
    (one / "dir" / "program").write_text("p")
    (one / "dir" / "program").chmod(0o700)
    (one / "link").symlink_to("dir/program")
    reference = context_archive(one).removeprefix("dockerfile:")
    back = unpack(reference, tmp_path / "back", "it")
    found = {str(path.relative_to(back.directory)) for path in back.directory.rglob("*")}
    assert found == {"Dockerfile", ".dockerignore", "kept", "dir", "dir/program", "link"}
    assert (tmp_path / "back/dir/program").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "back/link").readlink() == Path("dir/program")
    assert back.dockerfile.instructions[0].name == "FROM"


def test_another_file_may_be_the_dockerfile(tmp_path: Path) -> None:
    one = context(tmp_path / "one")
    (one / "other.Dockerfile").write_text("FROM local:x\n")
    reference = context_archive(one, one / "other.Dockerfile").removeprefix("dockerfile:")
    back = unpack(reference, tmp_path / "back", "it")
    assert back.dockerfile.instructions[0].rest == "local:x"


def test_what_is_no_context_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match="Dockerfile cannot be read"):
        context_archive(tmp_path / "empty")
    with_pipe = context(tmp_path / "with_pipe")
    os.mkfifo(with_pipe / "pipe")
    with pytest.raises(TaskError, match="pipe is no file, directory or symbolic link"):
        context_archive(with_pipe)
    with pytest.raises(TaskError, match="is not in this service's cache") as error:
        unpack(f"sha256:{'0' * 64}", tmp_path / "absent", "dockerfile:x")
    assert "prorl images build" in error.value.hint
    with pytest.raises(TaskError, match="no build context"):
        unpack(store_archive(b"no tar" * 1000), tmp_path / "broken", "it")
    with pytest.raises(TaskError, match="its archive has no Dockerfile"):
        unpack(store_archive(b"\0" * 10240), tmp_path / "nothing", "it")
