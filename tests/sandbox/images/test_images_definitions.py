"""Images that a user makes: definitions, directories. `dockerfiles` has those of Dockerfiles."""

import shutil
from pathlib import Path

import pytest

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.images import ImageCache, definitions
from tests.sandbox.images.cache_files import litter, marker
from tests.sandbox.images.oci import Layout, root_file_system

pytestmark = pytest.mark.processes

DEFINITION = """Bootstrap: localimage
From: {image}

%files
    added.txt /added.txt
"""


async def test_a_definition_may_copy_files_next_to_it(cache: ImageCache, tmp_path: Path) -> None:
    tree = root_file_system(tmp_path / "tree", "of a definition")
    (tmp_path / "added.txt").write_text("x")
    definition = tmp_path / "mine.def"
    definition.write_text(DEFINITION.format(image=tree))
    made = await cache.build("mine", definitions.of_file(definition))
    assert made.names == ("local:mine",)
    assert made.source == str(definition)
    async with cache.image("local:mine") as image:
        assert marker(image) == "of a definition"
        assert marker(image, "added.txt") == "x"
    assert litter(cache.root) == []


async def test_a_name_can_move_to_another_image(
    cache: ImageCache, layout: Layout, tmp_path: Path
) -> None:
    layout.add("pulled")
    tree = root_file_system(tmp_path / "tree", "a tree")
    first = await cache.build("mine", f"oci:{layout.path}")
    sif = tmp_path / "copy.sif"
    shutil.copy(first.path, sif)
    copied = await cache.build("copied", str(sif))
    assert copied.size_bytes == first.size_bytes
    await cache.build("mine", str(tree))
    async with cache.image("local:mine") as image:
        assert marker(image) == "a tree"
    async with cache.image("local:copied") as image:
        assert marker(image) == "pulled"


async def test_a_definition_that_fails_says_why(cache: ImageCache, tmp_path: Path) -> None:
    definition = tmp_path / "bad.def"
    definition.write_text("Bootstrap: localimage\nFrom: /absent\n")
    with pytest.raises(TaskError, match="/absent"):
        await cache.build("bad", definitions.of_file(definition))
    definition.write_text("FROM x")
    with pytest.raises(TaskError, match="it has no 'Bootstrap:'"):
        definitions.of_file(definition)
    with pytest.raises(TaskError, match="cannot be read"):
        definitions.of_file(tmp_path / "absent.def")
    assert litter(cache.root) == []


def test_a_debian_definition_names_suite_mirror_and_packages(tmp_path: Path) -> None:
    source = definitions.of_debian(
        "trixie", include=("git", "g++"), mirror="http://mirror.example/d"
    )
    assert Path(source.prepare(tmp_path)).read_text().splitlines()[:4] == [
        "Bootstrap: debootstrap",
        "OSVersion: trixie",
        "MirrorURL: http://mirror.example/d",
        "Include: git g++",
    ]
    with pytest.raises(TaskError, match="not the name of a suite"):
        definitions.of_debian("x\n%post", mirror="http://mirror.example/d")
    with pytest.raises(TaskError, match="not the URL"):
        definitions.of_debian("trixie", mirror="http://x\n%post")
    with pytest.raises(SandboxError, match="no source for nosuchsuite"):
        definitions.of_debian("nosuchsuite")
