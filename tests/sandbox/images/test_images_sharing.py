"""Many users of one cache: in one process, in several, killed half-way, short of room."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.images import CachedImage, ImageCache
from prorl_service.sandbox.kinds.apptainer import ApptainerProvider
from tests.programs import ran
from tests.sandbox.images.cache_files import builds, files, litter, marker, use_in_other_process
from tests.sandbox.images.oci import Layout, root_file_system
from tests.sandbox.images.registry import FakeRegistry
from tests.sandbox.sandboxes import output, started
from tests.sandbox.test_apptainer import make_tiny_image
from tests.waits import condition

pytestmark = pytest.mark.processes

TIMEOUT_S = 30
PADDING = 400_000
PRIVATE_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]


async def test_two_processes_make_one_image(root: Path, layout: Layout) -> None:
    layout.add("shared")
    async with FakeRegistry(layout) as registry:
        registry.blobs_flow.clear()
        users = [await use_in_other_process(root, registry.reference()) for _ in range(2)]
        await condition(lambda: len(list(root.glob("blobs/*/lease.*"))) == 2)
        await asyncio.wait_for(registry.blob_wanted.wait(), TIMEOUT_S)
        registry.blobs_flow.set()
        answers = [await asyncio.wait_for(line(user), TIMEOUT_S) for user in users]
        assert answers[0] == answers[1]
        assert registry.fetched("blobs") == 2  # the configuration and one layer
        assert marker(Path(answers[0])) == "shared"
    cache = ImageCache(root)
    assert [entry.in_use for entry in await cache.entries()] == [True]
    assert await cache.prune(everything=True) == []
    for user in users:
        await user.communicate(b"")
    assert len(await cache.prune(everything=True)) == 1
    assert files(root) == []


async def test_leftovers_of_a_killed_process_do_not_count(root: Path, layout: Layout) -> None:
    digest = layout.add("survivor")
    async with FakeRegistry(layout) as registry:
        registry.blobs_flow.clear()
        user = await use_in_other_process(root, registry.reference())
        await asyncio.wait_for(registry.blob_wanted.wait(), TIMEOUT_S)
        user.kill()
        await user.wait()
        orphans = builds(root)
        assert orphans
        assert litter(root)
        cache = ImageCache(root)
        assert await cache.entries() == []
        await condition(lambda: not builds(root))
        assert litter(root) == []
        registry.blobs_flow.set()
        async with await cache.get(registry.reference()) as lease:
            assert lease.digest == digest
            assert marker(lease.path) == "survivor"
    assert litter(root) == []


async def test_a_killed_process_loses_its_lease(root: Path, layout: Layout) -> None:
    layout.add("x")
    user = await use_in_other_process(root, f"oci:{layout.path}")
    await line(user)
    cache = ImageCache(root)
    assert await cache.prune(everything=True) == []
    user.send_signal(signal.SIGKILL)
    await user.communicate(b"")
    assert len(await cache.prune(everything=True)) == 1
    assert files(root) == []


async def test_a_build_ends_when_nobody_waits_for_it(cache: ImageCache, layout: Layout) -> None:
    layout.add("x")
    async with FakeRegistry(layout) as registry:
        registry.blobs_flow.clear()
        waiting = [asyncio.create_task(cache.get(registry.reference())) for _ in range(2)]
        await asyncio.wait_for(registry.blob_wanted.wait(), TIMEOUT_S)
        waiting[0].cancel()
        await asyncio.wait([waiting[0]])
        assert builds(cache.root)
        waiting[1].cancel()
        await asyncio.wait([waiting[1]], timeout=TIMEOUT_S)
        assert builds(cache.root) == []
        assert litter(cache.root) == []
        registry.blobs_flow.set()
        async with cache.image(registry.reference()) as image:
            assert marker(image) == "x"


async def test_a_build_that_takes_too_long_is_ended(root: Path, layout: Layout) -> None:
    layout.add("x")
    cache = ImageCache(root, build_timeout_s=0.3)
    async with FakeRegistry(layout) as registry:
        registry.blobs_flow.clear()
        with pytest.raises(SandboxError, match=r"took more than 0\.3 s"):
            await cache.get(registry.reference())
        registry.blobs_flow.set()
    assert builds(root) == []
    assert litter(root) == []


async def test_the_least_recently_used_images_make_room(root: Path, layout: Layout) -> None:
    references = [f"oci:{layout.path}:{tag}" for tag in "abcd"]
    digests = [layout.add(tag, tag=tag, padding=PADDING) for tag in "abcd"]
    cache = ImageCache(root, budget_bytes=3 * PADDING + 200_000)
    for reference in references[:3]:
        async with cache.image(reference):
            pass
    async with cache.image(references[0]), cache.image(references[3]):
        kept = {entry.digest for entry in await cache.entries()}
        assert kept == {digests[0], digests[2], digests[3]}


async def test_a_leased_image_stays_and_the_budget_holds(root: Path, layout: Layout) -> None:
    references = [f"oci:{layout.path}:{tag}" for tag in "ab"]
    for tag in "ab":
        layout.add(tag, tag=tag, padding=PADDING)
    cache = ImageCache(root, budget_bytes=PADDING + 200_000)
    async with cache.image(references[0]) as image:
        with pytest.raises(SandboxError, match="no room for") as error:
            await cache.get(references[1])
        assert error.value.retryable
        assert marker(image) == "a"
    async with cache.image(references[1]) as image:
        assert marker(image) == "b"
    assert len(await cache.entries()) == 1
    assert litter(root) == []


async def test_an_image_larger_than_the_budget_is_refused_before_any_work(
    root: Path, layout: Layout
) -> None:
    layout.add("x", padding=PADDING)
    cache = ImageCache(root, budget_bytes=PADDING // 2)
    async with FakeRegistry(layout) as registry:
        with pytest.raises(SandboxError, match="larger than the budget") as error:
            await cache.get(registry.reference())
        assert not error.value.retryable
        assert registry.fetched("blobs") == 0


async def test_an_image_made_here_is_not_evicted_for_room(
    root: Path, layout: Layout, tmp_path: Path
) -> None:
    layout.add("x", padding=PADDING)
    tree = root_file_system(tmp_path / "tree", "made here", padding=PADDING)
    cache = ImageCache(root, budget_bytes=PADDING + 200_000)
    made = await cache.build("mine", str(tree))
    with pytest.raises(SandboxError, match="was made here"):
        await cache.get(f"oci:{layout.path}")
    assert await cache.prune(budget_bytes=0) == []
    async with cache.image("local:mine") as image:
        assert marker(image) == "made here"
    assert [entry.digest for entry in await cache.prune(everything=True)] == [made.digest]
    with pytest.raises(TaskError, match="there is no image local:mine"):
        await cache.get("local:mine")


async def test_a_dry_run_of_prune_only_lists_images(cache: ImageCache, layout: Layout) -> None:
    for tag in "ab":
        layout.add(tag, tag=tag)
        async with cache.image(f"oci:{layout.path}:{tag}"):
            pass
    old, new = await cache.entries()
    os.utime(old.path.with_name("image.json"), (time.time() - 100,) * 2)
    assert digests(await cache.prune(unused_s=50, dry_run=True)) == [old.digest]
    assert digests(await cache.prune(budget_bytes=new.size_bytes, dry_run=True)) == [old.digest]
    assert len(await cache.entries()) == 2
    assert digests(await cache.prune(unused_s=50)) == [old.digest]
    assert digests(await cache.entries()) == [new.digest]


def test_a_full_disk_is_reported_and_leaves_no_litter(tmp_path: Path) -> None:
    tree = root_file_system(tmp_path / "tree", "x", padding=3_000_000)
    small = tmp_path / "small"
    small.mkdir()
    script = f"""
import asyncio
from pathlib import Path
from prorl_service.errors import SandboxError
from prorl_service.sandbox.images import ImageCache
from tests.sandbox.images.cache_files import files
async def main():
    try:
        await ImageCache(Path("{small}")).build("x", "{tree}")
    except SandboxError as error:
        print(error.retryable, error.hint, error, files(Path("{small}")), sep="|")
asyncio.run(main())
"""
    # A private file system, which ends with the process.
    mount = f'mount -t tmpfs -o size=2m tmpfs "{small}" && exec "$@"'
    done = ran(*PRIVATE_MOUNTS, mount, "sh", sys.executable, "-c", script)
    retryable, hint, message, left = done.stdout.strip().split("|")
    assert (retryable, left) == ("True", "[]"), done.stderr
    assert "free space" in hint
    assert "space left" in message


def digests(entries: list[CachedImage]) -> list[str]:
    return [entry.digest for entry in entries]


async def line(user: asyncio.subprocess.Process) -> str:
    assert user.stdout is not None
    return (await user.stdout.readline()).decode().strip()


async def test_an_idle_container_ends_to_make_room_for_another_image(
    root: Path, layout: Layout, tmp_path: Path
) -> None:
    references = []
    for tag in ("one", "two"):
        image = make_tiny_image(tmp_path / tag)
        (image / "name").write_text(tag)
        layout.add_tree(image, tag=tag)
        references.append(f"oci:{layout.path}:{tag}")
    async with ImageCache(tmp_path / "other").image(references[0]) as first:
        budget_bytes = first.stat().st_size * 3 // 2
    cache = ImageCache(
        root, budget_bytes=budget_bytes, evict_one=lambda: provider.evict_image(wait_s=1)
    )
    provider = ApptainerProvider(cache.image)
    try:
        for reference, tag in zip(references, ("one", "two"), strict=True):
            async with started(provider, image=reference) as sandbox:
                assert await output(sandbox, "cat /name") == tag
        assert len(await cache.entries()) == 1
        async with started(provider, image=references[1]):
            with pytest.raises(SandboxError, match="no room for"):
                async with started(provider, image=references[0]):
                    pass
    finally:
        await provider.close()
