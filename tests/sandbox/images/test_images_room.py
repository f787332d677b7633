"""Containers hold the images they run, and end if those images take the room of others."""

from pathlib import Path

import pytest

from prorl_service.errors import SandboxError
from prorl_service.sandbox.images import ImageCache
from prorl_service.sandbox.kinds.apptainer import ApptainerProvider
from tests.sandbox.images.oci import Layout
from tests.sandbox.sandboxes import output, started
from tests.sandbox.test_apptainer import make_tiny_image

pytestmark = pytest.mark.processes


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
