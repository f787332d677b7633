"""Images of stored contexts in the cache: built once, configured, cancelled without leftovers."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox import archives
from prorl_service.sandbox.images import ImageCache, ImageConfig, context_archive
from prorl_service.sandbox.images.dockerfiles import DockerfileBuilders
from prorl_service.sandbox.images.dockerfiles.work import DockerfileBuild
from prorl_service.sandbox.kinds.apptainer import ApptainerProvider
from tests.sandbox.images.cache_files import builds, litter
from tests.sandbox.images.debian import SMALL, debian_image
from tests.sandbox.images.dockerfiles.test_shapes import BUILDAH, require
from tests.sandbox.images.oci import Layout
from tests.sandbox.images.registry import FakeRegistry
from tests.sandbox.sandboxes import output, processes_with, started

pytestmark = [pytest.mark.processes, pytest.mark.slow]

T = TypeVar("T")

NAME = "debian:bookworm-slim"


@pytest.fixture(autouse=True)
def _own_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "cache_root", lambda: tmp_path / "service")


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)  # containers may be another user's
        yield Path(directory)


@pytest.fixture
def base() -> str:
    """A pair that puts a small Debian in the place of `NAME`."""
    require(BUILDAH)
    return f"{NAME}={debian_image(SMALL)}"


def context(directory: Path, text: str) -> str:
    directory.mkdir()
    (directory / "Dockerfile").write_text(text)
    return context_archive(directory)


async def test_an_image_is_built_once_and_has_its_configuration(
    root: Path, base: str, tmp_path: Path
) -> None:
    text = f"FROM {NAME}\nENV MADE='by test'\nWORKDIR /w\nUSER nobody\nRUN echo $RANDOM$$ >/tmp/f\n"
    reference = context(tmp_path / "one", text)
    cache, other = ImageCache(root, bases=[base]), ImageCache(root, bases=[base])
    leases = await asyncio.gather(*(one.get(reference) for one in (cache, cache, other)))
    assert len({(lease.path, lease.digest) for lease in leases}) == 1
    made_at = leases[0].path.stat().st_mtime_ns
    config = await other.config(reference)
    assert (config.workdir, config.user) == ("/w", "nobody")
    assert config.environment["MADE"] == "by test"
    (entry,) = await cache.entries()
    assert entry.names == (reference,)
    async with (
        ApptainerProvider(cache.image) as provider,
        started(provider, image=reference) as sandbox,
    ):
        assert await output(sandbox, "echo $MADE; pwd; id -un") == "by test\n/workspace\nroot"
    made = await cache.build("named", reference)
    assert made.digest == entry.digest
    assert made.path.stat().st_mtime_ns == made_at
    for lease in leases:
        await lease.release()
    assert litter(root) == []


async def test_what_stands_in_for_a_base_is_part_of_the_image(
    root: Path, base: str, tmp_path: Path
) -> None:
    reference = context(tmp_path / "one", f"FROM {NAME}\n")
    async with await ImageCache(root, bases=[base]).get(reference) as first:
        pass
    with pytest.raises(TaskError, match="not a pair of images"):
        ImageCache(root, bases=["debian"])
    with pytest.raises(TaskError, match="not an image reference"):
        ImageCache(root, bases=["debian=Debian"])
    another = base.replace(NAME, "127.0.0.1:9/x")
    async with await ImageCache(root, bases=[base, another]).get(reference) as second:
        assert second.digest != first.digest


async def test_a_base_of_a_registry_is_fetched_once_and_kept(
    root: Path, layout: Layout, tmp_path: Path
) -> None:
    require(BUILDAH)
    layout.add("of a registry")
    async with FakeRegistry(layout) as registry:
        name = registry.reference().removeprefix("docker://")
        text = f"FROM {name}\nCOPY Dockerfile /copied\n"
        cache = ImageCache(root)
        async with cache.image(context(tmp_path / "one", text)):
            pass
        registry.requests.clear()
        async with cache.image(context(tmp_path / "two", f"{text}LABEL a=b\n")):
            assert registry.requests == []
    # The registry is gone now.
    async with cache.image(context(tmp_path / "three", f"{text}LABEL a=c\n")):
        pass


async def test_an_image_that_a_task_names_has_a_substitute(root: Path) -> None:
    name = "127.0.0.1:9/a:b"
    with pytest.raises(SandboxError, match="cannot be reached") as error:
        await ImageCache(root).get(name)
    assert f"--image-base {name}=local:NAME" in error.value.hint
    instead = str(debian_image(SMALL))
    async with ImageCache(root, bases=[f"{name}={instead}"]).image(name) as image:
        assert str(image) == instead


async def test_a_base_that_cannot_be_had_names_the_line_and_the_option(
    root: Path, tmp_path: Path
) -> None:
    reference = context(tmp_path / "one", "ARG A=1\nFROM 127.0.0.1:9/a:b\n")
    with pytest.raises(SandboxError, match=r"line 2: FROM 127\.0\.0\.1:9/a:b: registry") as error:
        await ImageCache(root).get(reference)
    assert "--image-base 127.0.0.1:9/a:b=local:NAME" in error.value.hint
    with pytest.raises(TaskError, match="is not in this service's cache"):
        await ImageCache(root).get(f"dockerfile:sha256:{'0' * 64}")
    assert litter(root) == []


async def test_a_cancelled_build_leaves_nothing(root: Path, base: str, tmp_path: Path) -> None:
    text = f"FROM {NAME}\nRUN echo begun >/begun; sleep 86397\n"
    reference = context(tmp_path / "one", text)
    cache = ImageCache(root, bases=[base])
    building = asyncio.create_task(cache.get(reference))
    await until_it_sleeps(building, "86397")
    building.cancel()
    await asyncio.wait([building])
    assert building.cancelled()
    await gone("86397")
    assert litter(root) == []
    assert builds(root) == []


async def test_what_a_killed_process_left_is_ended_by_the_next(
    root: Path, base: str, tmp_path: Path
) -> None:
    reference = context(tmp_path / "one", f"FROM {NAME}\nRUN sleep 86396\n")
    program = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from prorl_service.sandbox.images import ImageCache\n"
        "root, base, reference = sys.argv[1:]\n"
        "asyncio.run(ImageCache(Path(root), bases=[base]).get(reference))\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(root), base, reference),
        env={**os.environ, "PRORL_CACHE": str(tmp_path / "service")},
    )
    await until_it_sleeps(asyncio.create_task(process.wait()), "86396")
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await ImageCache(root).prune()
    await gone("86396")
    assert litter(root) == []


async def until_it_sleeps(building: asyncio.Task[T], seconds: str) -> None:
    while not processes_with(f"sleep {seconds}"):
        done, _ = await asyncio.wait([building], timeout=0.05)
        assert not done, building


async def gone(seconds: str) -> None:
    """Waits until the kernel has ended what was killed."""
    left = processes_with(f"sleep {seconds}")
    await asyncio.to_thread(psutil.wait_procs, left, timeout=10)
    assert processes_with(f"sleep {seconds}") == []


async def test_onbuild_of_a_base_is_refused(root: Path, layout: Layout, tmp_path: Path) -> None:
    require(BUILDAH)
    layout.add("trigger", config={"OnBuild": ["RUN x"], "WorkingDir": "/w", "Env": ["A=b=c"]})
    cache = ImageCache(root)
    assert await cache.config(f"oci:{layout.path}") == ImageConfig("/w", None, {"A": "b=c"})
    await cache.build("trigger", f"oci:{layout.path}")
    with pytest.raises(TaskError, match=r"line 1: .*ONBUILD is not supported.*: RUN x"):
        await cache.get(context(tmp_path / "one", "FROM local:trigger\n"))


async def test_the_configuration_of_a_base_is_kept(
    root: Path, layout: Layout, tmp_path: Path
) -> None:
    require(BUILDAH)
    environment = ["A=x$HOME ${B} $", "PATH=/opt:/bin"]
    layout.add("base", config={"Env": environment, "WorkingDir": "/w", "User": "7:8"})
    cache = ImageCache(root, bases=[f"base=oci:{layout.path}"], build_network=False)
    config = await cache.config(context(tmp_path / "one", 'FROM base\nENV C="$A!"\n'))
    assert (config.workdir, config.user) == ("/w", "7:8")
    assert config.environment == {
        "A": "x$HOME ${B} $",
        "C": "x$HOME ${B} $!",
        "PATH": "/opt:/bin",
    }


class Scripted:
    """A builder that says what it can do and makes nothing."""

    def __init__(self, name: str, failure: str | None, obstacle: str | None) -> None:
        self.name = name
        self._failure = failure
        self._obstacle = obstacle

    async def trial(self, workspace: Path) -> str | None:
        return self._failure

    def obstacle(self, build: DockerfileBuild) -> TaskError | None:
        first = build.context.dockerfile.instructions[0]
        return build.beyond(self.name, self._obstacle, first) if self._obstacle else None

    async def make(self, build: DockerfileBuild, made: Path) -> dict[str, object]:
        raise TaskError(f"made by {self.name}")


@pytest.mark.parametrize(
    ("builders", "message", "hint"),
    [
        ([("a", None, None), ("b", None, None)], "made by a", ""),
        ([("a", "broken", None), ("b", None, None)], "made by b", ""),
        ([("a", None, "no"), ("b", None, None)], "made by b", ""),
        (
            [("buildah", "absent", None), ("c", None, "too hard")],
            "line 1: FROM scratch: c cannot do it: too hard",
            "prorl install buildah (buildah would do it: absent)",
        ),
        (
            [("a", "absent", None), ("b", "broken", None)],
            "no builder of Dockerfiles works here: a: absent; b: broken",
            "prorl install buildah",
        ),
    ],
)
async def test_the_first_builder_that_can_builds(
    root: Path,
    tmp_path: Path,
    builders: list[tuple[str, str | None, str | None]],
    message: str,
    hint: str,
) -> None:
    scripted = DockerfileBuilders(tuple(Scripted(*one) for one in builders))
    cache = ImageCache(root, builders=scripted)
    with pytest.raises((TaskError, SandboxError), match=message) as error:
        await cache.get(context(tmp_path / "one", "FROM scratch\n"))
    assert error.value.hint == hint
