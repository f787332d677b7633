"""What an image says about itself: read from SIF files that Apptainer makes, and from Dockerfiles."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harbor.environments import Making
from tests.sandbox.images.oci import Layout

pytestmark = pytest.mark.processes


def sif(layout: Path, path: Path) -> Path:
    command = ["apptainer", "--silent", "build", str(path), f"oci:{layout}"]
    subprocess.run(command, check=True, cwd=path.parent)
    return path


def configured(layout: Layout, config: dict[str, Any]) -> None:
    """Gives the layout's one image a configuration."""
    manifest_path = layout.blob_path(layout.entries[0]["digest"])
    manifest = json.loads(manifest_path.read_text())
    content = json.loads(layout.blob_path(manifest["config"]["digest"]).read_text())
    manifest["config"] = layout._blob(
        json.dumps(content | {"config": config}).encode(), manifest["config"]["mediaType"]
    )
    digest = layout._blob(json.dumps(manifest).encode(), layout.entries[0]["mediaType"])
    layout.entries.clear()
    layout._list(digest, "latest")


def test_the_configuration_is_read_from_the_file(tmp_path: Path) -> None:
    from prorl_harbor.image import ImageConfig, config_of

    layout = Layout(tmp_path / "layout")
    layout.add("text")
    assert config_of(sif(layout.path, tmp_path / "bare.sif")) == ImageConfig()
    configured(layout, {"WorkingDir": "/app", "User": "agent:staff", "Env": ["A=b"]})
    full = config_of(sif(layout.path, tmp_path / "full.sif"))
    assert full == ImageConfig("/app", "agent:staff")
    (tmp_path / "other").write_bytes(bytes(500))
    assert config_of(tmp_path / "other") == config_of(tmp_path) == ImageConfig()


def with_config(image: Path, config: dict[str, Any]) -> str:
    """Returns a copy of an image that has a configuration, as those of registries do."""
    copy, text = image.with_name("configured.sif"), image.with_name("oci-config.json")
    shutil.copy(image, copy)
    copy.chmod(0o644)
    text.write_text(json.dumps(config))
    command = ["apptainer", "sif", "add", "--datatype", "6", "--groupid", "1", str(copy), str(text)]
    subprocess.run(command, check=True)
    return str(copy)


async def test_commands_start_in_the_images_workdir(making: Making) -> None:
    image = with_config(making.image, {"WorkingDir": "/opt/app"})
    environment = await making.started({"docker_image": image})
    assert (await environment.exec("pwd")).stdout == "/opt/app\n"
    environment = await making.started({"docker_image": image, "workdir": "/mine"})
    assert (await environment.exec("pwd")).stdout == "/mine\n"


async def test_an_images_user_is_refused(making: Making) -> None:
    image = with_config(making.image, {"User": "agent"})
    with pytest.raises(ValueError, match="the image's USER = 'agent'"):
        await making.started({"docker_image": image})
    environment = await making.started({"docker_image": image}, as_root=True)
    assert (await environment.exec("id -un")).stdout == "root\n"


@pytest.mark.parametrize(
    ("text", "workdir", "user"),
    [
        ("FROM a\nWORKDIR /x\nWORKDIR y", "/x/y", None),
        ("FROM a\nWORKDIR rel", "/rel", None),
        ("from a\nworkdir /x\nFROM b", None, None),
        ('FROM a\nWORKDIR "/with space"\nuser app', "/with space", "app"),
        ("FROM a\nWORKDIR /x\\\n# comment\n/y\nUSER 1000:1000", "/x /y", "1000:1000"),
        ("FROM a\nARG D=/x\nWORKDIR $D", None, None),
        ("FROM a\n# USER nobody\nRUN WORKDIR=/x true", None, None),
    ],
)
def test_the_last_stage_of_a_dockerfile_counts(
    text: str, workdir: str | None, user: str | None
) -> None:
    from prorl_harbor.image import ImageConfig, config_of_dockerfile

    assert config_of_dockerfile(text) == ImageConfig(workdir, user)


def test_a_context_has_the_same_reference_for_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prorl_harbor.context import dockerfile_reference

    monkeypatch.setenv("PRORL_CACHE", str(tmp_path / "cache"))
    references = []
    for name, text in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "Dockerfile").write_text("FROM scratch\nCOPY sub /sub\n")
        (tmp_path / name / "sub" / "file").write_text(text)
        references.append(dockerfile_reference(tmp_path / name))
    assert references[0] == references[1] != references[2]
    assert references[0].startswith("dockerfile:sha256:")
