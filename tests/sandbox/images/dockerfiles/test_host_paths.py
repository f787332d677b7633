"""The builder spython copies files of the context alone, whatever a Dockerfile calls them."""

from pathlib import Path

import pytest

from prorl_service.errors import TaskError
from prorl_service.sandbox.images.dockerfiles import conversion
from prorl_service.sandbox.images.dockerfiles.context import Context
from prorl_service.sandbox.images.dockerfiles.syntax import parse
from prorl_service.sandbox.images.dockerfiles.work import BaseImage, DockerfileBuild


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A context beside a secret of the host."""
    context = tmp_path / "context"
    (context / "dir").mkdir(parents=True)
    (context / "a.txt").touch()
    (tmp_path / "secret").touch()
    return context


def build_of(copy: str, context: Path) -> DockerfileBuild:
    dockerfile = parse(f"FROM base\n{copy}\n")
    bases = {"base": BaseImage(Path("/base.sif"), {})}
    return DockerfileBuild("it", Context(context, dockerfile), bases, context.parent, True, 60)


@pytest.mark.parametrize("source", ["../secret", "/etc/passwd", "dir/../../secret", "//etc/passwd"])
def test_a_path_of_the_host_is_refused(source: str, context: Path) -> None:
    build = build_of(f"COPY {source} /x", context)
    assert conversion.Conversion().obstacle(build) is None
    with pytest.raises(TaskError, match=f"line 2: COPY {source} /x: the context has no {source}"):
        conversion._convert(build)


@pytest.mark.parametrize("source", ["../a.txt", "/a.txt", "dir/../a.txt", "./a.txt"])
def test_a_path_that_leaves_the_context_begins_there(source: str, context: Path) -> None:
    definition, _ = conversion._convert(build_of(f"COPY {source} /x", context))
    assert "\n%files\na.txt /x\n" in definition.read_text()


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret"])
@pytest.mark.parametrize("source", ["dir/link", "dir", "."])
def test_a_link_out_of_the_context_is_refused(target: str, source: str, context: Path) -> None:
    (context / "dir/link").symlink_to(target)
    refusal = conversion.Conversion().obstacle(build_of(f"COPY {source} /x", context))
    assert refusal is not None
    assert "dir/link leads out of the context" in str(refusal)


def test_a_link_within_the_context_is_followed(context: Path) -> None:
    (context / "dir/link").symlink_to("../a.txt")
    assert conversion.Conversion().obstacle(build_of("COPY dir /x", context)) is None
