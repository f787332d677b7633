"""Images in an engine's own store: brought once, kept while used, removed only if brought by us."""

import asyncio
import io
import subprocess
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox import archives
from prorl_service.sandbox.images import ImageOptions, context_archive, definitions
from prorl_service.sandbox.images.engine_images import ContainerEngine, EngineImages
from prorl_service.sandbox.kinds import docker, podman
from tests.sandbox import engines
from tests.sandbox.images.oci import Layout, docker_archive, root_file_system
from tests.sandbox.images.registry import FakeRegistry
from tests.sandbox.sandboxes import DOCKER, image_of, new_provider, started

pytestmark = pytest.mark.processes

MODULES = {"podman": podman, "docker": docker}


@pytest.fixture(params=["podman", DOCKER])
def engine(request: pytest.FixtureRequest) -> ContainerEngine:
    engines.use(request.param)
    found: ContainerEngine = MODULES[request.param].engine()
    return found


@pytest.fixture
async def images(engine: ContainerEngine, root: Path) -> AsyncIterator[EngineImages]:
    images = EngineImages(engine, ImageOptions(root=root))
    yield images
    assert not [entry for entry in await images.prune(everything=True) if entry.in_use]
    assert await images.entries() == []


def run(engine: ContainerEngine, *arguments: str) -> str:
    done = subprocess.run([*engine.command, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def marker(engine: ContainerEngine, image: str) -> str:
    """Returns the content of /marker of an image."""
    container = run(engine, "create", "--network=none", image, "/none")
    exported = subprocess.run(
        [*engine.command, "export", container], capture_output=True, check=True
    )
    run(engine, "rm", container)
    with tarfile.open(fileobj=io.BytesIO(exported.stdout)) as tar:
        content = tar.extractfile("marker")
        assert content is not None
        return content.read().decode()


async def test_an_image_of_a_registry_is_pulled_once(
    images: EngineImages, engine: ContainerEngine, layout: Layout
) -> None:
    layout.add("first", config={"WorkingDir": "/w", "User": "app", "Env": ["A=b=c"]})
    async with FakeRegistry(layout, tokens=True) as registry:
        name = registry.reference()
        async with images.image(name) as one, images.image(name) as other:
            assert one == other
        assert marker(engine, one) == "first"
        registry.requests.clear()
        config = await images.config(name)
        assert (config.workdir, config.user, config.environment["A"]) == ("/w", "app", "b=c")
        assert registry.requests == []
        layout.add("second")
        async with images.image(name) as unchanged:
            assert unchanged == one
        (pulled,) = await images.prefetch([name])
        assert pulled.state == "done"
        async with images.image(name) as moved:
            assert marker(engine, moved) == "second"
        registry.status = 503
        (pulled,) = await images.prefetch([name])
        assert pulled.state == "done"  # of what is here


async def test_an_image_that_does_not_exist_is_the_tasks_fault(
    images: EngineImages, layout: Layout
) -> None:
    async with FakeRegistry(layout) as registry:
        with pytest.raises(TaskError, match="cannot make an image of"):
            async with images.image(registry.reference(tag="none")):
                pass
    with pytest.raises(SandboxError, match="refused"):
        async with images.image(registry.reference()):
            pass
    with pytest.raises(TaskError, match="there is no image local:none"):
        async with images.image("local:none"):
            pass
    assert await images.entries() == []


async def test_archives_and_layouts_are_images(
    images: EngineImages, engine: ContainerEngine, layout: Layout, tmp_path: Path
) -> None:
    archive = docker_archive(tmp_path / "docker.tar", "of an archive")
    async with images.image(f"docker-archive:{archive}") as image:
        assert marker(engine, image) == "of an archive"
    layout.add("one", tag="one")
    layout.add("two", tag="two")
    reference = f"oci:{layout.path}:two"
    if not engine.is_podman:
        with pytest.raises(TaskError, match="archives of `docker save` only"):
            async with images.image(reference):
                pass
        return
    async with images.image(reference) as image:
        assert marker(engine, image) == "two"
    single = Layout(tmp_path / "single")
    single.add("archived")
    async with images.image(f"oci-archive:{single.archive(tmp_path / 'oci.tar')}") as image:
        assert marker(engine, image) == "archived"


async def test_a_root_file_system_is_imported_and_named(
    images: EngineImages, engine: ContainerEngine, tmp_path: Path
) -> None:
    tree = root_file_system(tmp_path / "tree", "a tree")
    with pytest.raises(TaskError, match="uses no files") as refusal:
        async with images.image(str(tree)):
            pass
    assert f"--kind {engine.name}" in refusal.value.hint
    with pytest.raises(TaskError, match="definitions and --debian are Apptainer's"):
        await images.build("none", definitions.of_debian("bookworm", mirror="file:/nowhere"))
    made = await images.build("tree-of-tests", str(tree))
    assert made.names == ("local:tree-of-tests",)
    async with images.image("local:tree-of-tests") as image:
        assert marker(engine, image) == "a tree"


async def test_a_dockerfile_is_built_once_on_what_stands_in(
    engine: ContainerEngine, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "cache_root", lambda: tmp_path / "service")
    (tmp_path / "context").mkdir()
    text = "FROM debian:bookworm-slim\nENV MADE='by test'\nCOPY Dockerfile /marker\n"
    (tmp_path / "context/Dockerfile").write_text(text)
    reference = context_archive(tmp_path / "context")
    bases = ("debian:bookworm-slim=local:base-of-tests",)
    images = EngineImages(engine, ImageOptions(root=root, bases=bases, build_network=False))
    if not engine.is_podman and engines.has_no_buildx():
        pytest.skip("Docker needs buildx to put another image in the place of a base")
    await images.build("base-of-tests", str(root_file_system(tmp_path / "base", "base")))
    async with images.image(reference) as image:
        assert marker(engine, image) == text
        assert (await images.config(reference)).environment["MADE"] == "by test"
        async with images.image(reference) as again:
            assert again == image
    (tmp_path / "context/Dockerfile").write_text(f"{text}COPY missing /\n")
    with pytest.raises(TaskError, match="missing"):
        async with images.image(context_archive(tmp_path / "context")):
            pass
    assert len(await images.prune(everything=True)) == 2


async def test_only_unused_images_of_ours_make_room(
    engine: ContainerEngine, root: Path, layout: Layout
) -> None:
    for tag in ("users", "one", "two", "three"):
        layout.add(tag, tag=tag, padding=400_000)
    async with FakeRegistry(layout) as registry:
        names = {tag: registry.reference(tag=tag) for tag in ("users", "one", "two", "three")}
        users = names["users"].removeprefix("docker://")
        plain = ["--tls-verify=false"] if engine.is_podman else []
        await asyncio.to_thread(run, engine, "pull", "-q", *plain, users)
        images = EngineImages(engine, ImageOptions(root=root, budget_bytes=1_000_000))
        for tag in ("users", "one", "two", "three"):
            async with images.image(names[tag]):
                pass
        kept = [entry.names[0] for entry in await images.entries()]
        assert kept == [names["two"], names["three"]]
        async with images.image(names["two"]), images.image(names["three"]):
            with pytest.raises(SandboxError, match="no room for"):
                async with images.image(names["one"]):
                    pass
            assert await images.prune(everything=True, dry_run=True) == []
        small = EngineImages(engine, ImageOptions(root=root, budget_bytes=100_000))
        with pytest.raises(SandboxError, match="no room for"):
            async with small.image(names["one"]):
                pass
        assert await images.entries() == []
        run(engine, "rmi", users)


async def test_a_container_keeps_its_image(engine: ContainerEngine) -> None:
    """Also from other processes, which know nothing of this one's leases."""
    reference = image_of(engine.name)
    assert reference is not None
    async with new_provider(engine.name) as provider, started(provider):
        store = EngineImages(engine, ImageOptions(root=engines.RECORDS))
        (entry,) = (one for one in await store.entries() if reference in one.names)
        assert entry.in_use
        assert entry not in await store.prune(everything=True, dry_run=True)
        assert await asyncio.to_thread(run, engine, "image", "inspect", entry.source)
