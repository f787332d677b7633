"""Images from layouts, archives and a registry on loopback, made by the real apptainer."""

import asyncio
import logging
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from prorl_service.errors import ProRLError, SandboxError, TaskError
from prorl_service.sandbox.images import ImageCache, Pulled
from tests.sandbox.images.cache_files import files, litter, marker
from tests.sandbox.images.oci import ARCHITECTURE, Layout, docker_archive, root_file_system
from tests.sandbox.images.registry import FakeRegistry

pytestmark = pytest.mark.processes

LAYOUT_FORMS: dict[str, Callable[[Layout], str]] = {
    "layout": lambda layout: f"oci:{layout.path}",
    "tag": lambda layout: f"oci:{layout.path}:latest",
    "archive": lambda layout: f"oci-archive:{layout.archive(layout.path.with_suffix('.tar'))}",
}


@pytest.mark.parametrize("form", LAYOUT_FORMS)
async def test_a_layout_becomes_a_sif_known_by_its_manifest(
    cache: ImageCache, layout: Layout, form: str
) -> None:
    digest = layout.add("from a layout")
    reference = LAYOUT_FORMS[form](layout)
    lease = await cache.get(reference)
    assert lease.digest == digest
    assert marker(lease.path) == "from a layout"
    assert lease.path.stat().st_mode & 0o777 == 0o644
    await lease.release()
    assert litter(cache.root) == []
    before = lease.path.stat()
    async with cache.image(reference) as again:
        assert again.stat().st_ino == before.st_ino


async def test_a_docker_archive_becomes_an_image(cache: ImageCache, tmp_path: Path) -> None:
    archive = docker_archive(tmp_path / "saved.tar", "from docker save")
    async with cache.image(f"docker-archive:{archive}") as image:
        assert marker(image) == "from docker save"


async def test_files_and_directories_are_used_as_they_are(
    cache: ImageCache, layout: Layout, tmp_path: Path
) -> None:
    layout.add("x")
    directory = root_file_system(tmp_path / "root", "as is")
    async with cache.image(str(directory)) as path:
        assert path == directory
    async with cache.image(f"oci:{layout.path}") as sif, cache.image(str(sif)) as path:
        assert path == sif


async def test_a_source_that_is_no_image_is_refused_with_the_reason(
    cache: ImageCache, layout: Layout, tmp_path: Path
) -> None:
    layout.add("x")
    broken = tmp_path / "broken.tar"
    broken.write_bytes(b"not a tar file" * 100)
    incomplete = tmp_path / "incomplete.tar"
    with tarfile.open(incomplete, "w") as tar:
        tar.add(layout.path / "oci-layout", arcname="oci-layout")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused = {
        f"oci-archive:{broken}": "it is broken",
        f"docker-archive:{broken}": "it is broken",
        f"oci-archive:{incomplete}": "it is not complete",
        f"docker-archive:{incomplete}": "it is not complete",
        f"oci:{tmp_path}/absent": "there is no",
        f"oci:{layout.path}:absent": "it must name one image; there is latest",
        f"oci:{empty}": "it is not complete",
        str(broken): "is not a SIF file",
        str(empty): "no bin or usr",
        f"{tmp_path}/absent.sif": "No such file",
        "local:absent": "there is no image local:absent",
    }
    for reference, reason in refused.items():
        with pytest.raises(TaskError, match=reason):
            await cache.get(reference)
    assert files(cache.root) == []


async def test_a_layer_with_other_content_is_refused(cache: ImageCache, layout: Layout) -> None:
    layout.add("x")
    layers = [
        path for path in (layout.path / "blobs/sha256").iterdir() if path.read_bytes()[0] == 31
    ]
    layers[0].write_bytes(layers[0].read_bytes()[:-20])
    with pytest.raises(TaskError, match="apptainer cannot make an image of oci:") as error:
        await cache.get(f"oci:{layout.path}")
    assert len(error.value.message.splitlines()) < 4
    assert litter(cache.root) == []


async def test_a_registry_image_is_fetched_once(cache: ImageCache, layout: Layout) -> None:
    digest = layout.add("from a registry")
    async with FakeRegistry(layout, tokens=True) as registry:
        leases = await asyncio.gather(*(cache.get(registry.reference()) for _ in range(20)))
        assert {lease.digest for lease in leases} == {digest}
        assert marker(leases[0].path) == "from a registry"
        assert registry.fetched("blobs") == 2  # the configuration and one layer
        registry.requests.clear()
        async with cache.image(registry.reference()):
            assert registry.requests == []
        pinned = registry.reference().replace(":latest", f"@{digest}")
        async with cache.image(pinned):
            assert registry.fetched("blobs") == 0
    for lease in leases:
        await lease.release()


async def test_an_index_gives_the_image_for_this_machine(cache: ImageCache, layout: Layout) -> None:
    ours = layout.add("ours", tag="a")
    digests = {"s390x": layout.add("others", tag="b"), ARCHITECTURE: ours}
    layout.add_index(digests, tag="multi")
    layout.add_index({"s390x": digests["s390x"]}, tag="foreign")
    async with FakeRegistry(layout) as registry:
        async with await cache.get(registry.reference(tag="multi")) as lease:
            assert lease.digest == ours
            assert marker(lease.path) == "ours"
        with pytest.raises(TaskError, match=r"no image for linux/.*only for linux/s390x"):
            await cache.get(registry.reference(tag="foreign"))


async def test_a_tag_that_moved_is_noticed_by_a_refresh(cache: ImageCache, layout: Layout) -> None:
    old = layout.add("old")
    async with FakeRegistry(layout) as registry:
        async with cache.image(registry.reference()):
            new = layout.add("new")
            async with await cache.get(registry.reference()) as lease:
                assert lease.digest == old
        registry.requests.clear()
        async with await cache.get(registry.reference(), refresh=True) as lease:
            assert lease.digest == new
            assert marker(lease.path) == "new"
        registry.requests.clear()
        async with await cache.get(registry.reference(), refresh=True) as lease:
            assert [method for method, _ in registry.requests] == ["HEAD"]
    assert {entry.digest for entry in await cache.entries()} == {old, new}


async def test_a_known_tag_is_served_with_a_warning_without_its_registry(
    cache: ImageCache, layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    digest = layout.add("kept")
    async with FakeRegistry(layout) as registry:
        reference = registry.reference()
        async with cache.image(reference):
            pass
        registry.status = 503
        with caplog.at_level(logging.WARNING):
            async with await cache.get(reference, refresh=True) as lease:
                assert lease.digest == digest
        assert "using the cached image" in caplog.text
    async with await cache.get(reference, refresh=True) as lease:
        assert lease.digest == digest
    with pytest.raises(SandboxError, match="cannot be reached") as error:
        await cache.get(reference.replace("latest", "other"))
    assert error.value.retryable


async def test_failures_of_a_registry_are_distinguished(cache: ImageCache, layout: Layout) -> None:
    digest = layout.add("x")
    async with FakeRegistry(layout) as registry:
        reference = registry.reference()
        with pytest.raises(TaskError, match="it does not exist"):
            await cache.get(registry.reference(tag="absent"))
        for status, retryable in {401: False, 403: False, 429: True, 500: True}.items():
            registry.status = status
            with pytest.raises(ProRLError) as error:
                await cache.get(reference)
            assert error.value.retryable == retryable, status
        registry.status, registry.altered = 200, True
        for pinned in (reference, reference.replace(":latest", f"@{digest}")):
            with pytest.raises(TaskError, match="the registry answered sha256:"):
                await cache.get(pinned)
    assert files(cache.root) == []


async def test_the_error_without_apptainer_says_what_to_do(
    cache: ImageCache, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout.add("x")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(SandboxError, match="apptainer is not installed") as error:
        await cache.get(f"oci:{layout.path}")
    assert "prorl install sandboxes" in error.value.hint
    assert not error.value.retryable


async def test_a_prefetch_gets_what_it_can(cache: ImageCache, layout: Layout) -> None:
    seen: list[Pulled] = []
    for tag in "abc":
        layout.add(tag, tag=tag)
    references = [f"oci:{layout.path}:{tag}" for tag in ("a", "absent", "b", "c", "a")]
    pulled = await cache.prefetch(references, parallel=2, on_progress=seen.append)
    assert [one.state for one in pulled] == ["done", "failed", "done", "done"]
    assert isinstance(pulled[1].error, TaskError)
    assert [one.state for one in seen].count("working") == 4
    assert len(await cache.entries()) == 3
    assert not any(entry.in_use for entry in await cache.entries())
