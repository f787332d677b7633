"""Every shape of the corpus is built and checked in a sandbox, or refused with its line."""

import asyncio
import functools
import os
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prorl_service.sandbox.images.dockerfiles import DockerfileBuilders
from prorl_service.sandbox.images.dockerfiles.work import DockerfileBuilder
from prorl_service.sandbox.images.store import remove_tree
from tests.sandbox.images.debian import PACKAGES, SMALL, debian_image
from tests.sandbox.images.dockerfiles.corpus import Shape, shapes, try_shape

pytestmark = [pytest.mark.processes, pytest.mark.slow]

BUILDAH, SPYTHON = DockerfileBuilders().builders


@functools.cache
def failures() -> Mapping[str, str | None]:
    """Returns why each builder does not work on this host, by name."""
    directory = Path(tempfile.mkdtemp())
    try:
        with ThreadPoolExecutor(1) as thread:  # callers may be inside an event loop
            return thread.submit(asyncio.run, DockerfileBuilders().failures(directory)).result()
    finally:
        remove_tree(directory)


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A cache that containers of other users see, whatever pytest makes of its own directory."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)
        yield Path(directory)


def require(builder: DockerfileBuilder) -> None:
    why = failures()[builder.name]
    if why is not None:
        pytest.skip(f"{builder.name} does not work here: {why}")


@pytest.mark.parametrize("builder", [BUILDAH, SPYTHON], ids=lambda builder: builder.name)
@pytest.mark.parametrize("shape", [*shapes()], ids=lambda shape: shape.name)
@pytest.mark.sampled(14)
def test_a_shape_becomes_what_it_must_or_spython_names_the_line(
    shape: Shape, builder: DockerfileBuilder, root: Path, tmp_path: Path
) -> None:
    require(builder)
    base = str(debian_image(SMALL if builder is BUILDAH else PACKAGES))
    one = DockerfileBuilders((builder,))
    outcome = asyncio.run(try_shape(shape, one, base=base, root=root, work=tmp_path / "work"))
    is_beyond = builder is SPYTHON and "spython cannot do it" in outcome.outcome
    assert outcome.ok or is_beyond, outcome.outcome
