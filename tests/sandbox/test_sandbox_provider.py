"""Choice of the kind that serves a task, and errors if no kind can."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox import SandboxKind, provider
from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.images import ImageOptions
from prorl_service.sandbox.kinds import KINDS
from tests.sandbox import engines
from tests.sandbox.images.debian import debian_image

pytestmark = pytest.mark.processes

LIMITS = SandboxLimits()


def fail(directory: Path, program: str, message: str) -> None:
    broken = directory / program
    broken.write_text(f"#!/bin/sh\necho '{message}' >&2; exit 1\n")
    broken.chmod(0o755)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields a directory whose programs are found before all others; every user can read it."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
        yield Path(directory)


async def test_auto_takes_apptainer_for_images_and_bubblewrap_for_the_rest() -> None:
    auto = provider("auto")
    assert auto.kind == "apptainer+bubblewrap"
    image = str(debian_image())
    auto.prewarm([image, None])
    for name in (image, None):
        sandbox = auto.create(image=name, limits=LIMITS)
        await sandbox.start()
        result = await sandbox.call_tool("bash", {"command": "id -un"}, timeout_s=20)
        assert result.output == ("root\n" if name else "agent\n")
        await sandbox.stop()
    await auto.close()


async def test_tasks_without_an_image_get_the_default_image() -> None:
    auto = provider("auto", default_image=str(debian_image()))
    assert auto.kind == "apptainer"
    sandbox = auto.create(image=None, limits=LIMITS)
    await sandbox.start()
    result = await sandbox.call_tool("bash", {"command": "id -un"}, timeout_s=20)
    assert result.output == "root\n"
    await sandbox.stop()
    await auto.close()


async def test_auto_takes_podman_if_apptainer_does_not_work(programs: Path) -> None:
    image = engines.engine_image("podman")
    fail(programs, "apptainer", "FATAL: no user namespaces")
    async with provider("auto", images=ImageOptions(root=engines.RECORDS)) as auto:
        assert auto.kind == "podman+bubblewrap"
        sandbox = auto.create(image=image, limits=LIMITS)
        await sandbox.start()
        await sandbox.stop()


def test_images_are_refused_if_no_kind_with_images_works(programs: Path) -> None:
    fail(programs, "apptainer", "FATAL: no user namespaces")
    for engine in engines.ENGINES:
        fail(programs, engine, "no engine")
    auto = provider("auto")
    assert auto.kind == "bubblewrap"
    auto.check(None)
    for refuse in (auto.check, lambda image: auto.create(image=image, limits=LIMITS)):
        with pytest.raises(TaskError, match=r"'ubuntu:24.04'.*no user namespaces") as caught:
            refuse("ubuntu:24.04")
        assert "without an image" in caught.value.hint
        assert "prorl install sandboxes" in caught.value.hint


def test_an_apptainer_that_may_not_be_run_is_reported(programs: Path) -> None:
    fail(programs, "apptainer", "")
    (programs / "apptainer").chmod(0o700)
    with pytest.raises(SandboxError, match="Apptainer does not work"):
        provider("apptainer")


def test_tasks_need_images_if_bubblewrap_does_not_work(programs: Path) -> None:
    fail(programs, "bwrap", "bwrap: No permissions to create new namespace")
    auto = provider("auto")
    assert auto.kind == "apptainer"
    auto.check("ubuntu:24.04")
    with pytest.raises(TaskError, match=r"without an image.*No permissions") as caught:
        auto.check(None)
    assert "--default-image" in caught.value.hint
    with pytest.raises(SandboxError, match="No permissions to create new namespace"):
        provider("bubblewrap")


def test_auto_never_falls_back_to_no_isolation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxError) as caught:
        provider("auto")
    for program in ("Apptainer", "podman", "docker"):
        assert f"{program} is not installed" in caught.value.message
    assert "bubblewrap is not installed" in caught.value.message
    assert not caught.value.retryable
    assert "prorl install sandboxes" in caught.value.hint
    with pytest.raises(SandboxError, match="Apptainer is not installed"):
        provider("auto", default_image="ubuntu:24.04")
    with pytest.raises(SandboxError, match="Apptainer is not installed"):
        provider("apptainer")
    assert provider("process").kind == "process"


@pytest.mark.parametrize("kind", ["auto", "apptainer"])
def test_malformed_image_references_are_refused(kind: SandboxKind) -> None:
    chosen = provider(kind)
    for image in ("", "Ubuntu Linux", "https://example.org/image", "ubuntu@sha256:12"):
        with pytest.raises(TaskError, match="not an image reference"):
            chosen.check(image)
    with pytest.raises(TaskError, match="not an image reference"):
        provider(kind, default_image="Ubuntu Linux")


def test_apptainer_alone_needs_images() -> None:
    with pytest.raises(TaskError, match="needs an image") as caught:
        provider("apptainer").check(None)
    assert "--default-image" in caught.value.hint


@pytest.mark.parametrize("kind", ["bubblewrap", "process"])
def test_kinds_without_images_refuse_them(kind: SandboxKind) -> None:
    chosen = provider(kind)
    for refuse in (chosen.check, lambda image: chosen.create(image=image, limits=LIMITS)):
        with pytest.raises(TaskError, match="ubuntu"):
            refuse("ubuntu:24.04")
    with pytest.raises(SandboxError, match="no images"):
        provider(kind, default_image="ubuntu:24.04")


def test_the_docs_list_every_kind() -> None:
    page = (Path(__file__).parents[2] / "docs/which_sandbox.md").read_text()
    assert all(f"\n| `{name}` |" in page for name in KINDS)
