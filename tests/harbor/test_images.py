"""Images of tasks: what they say about themselves, and Dockerfiles."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from prorl_service.sandbox.images import ImageCache
from tests.harbor.environments import Making

pytestmark = pytest.mark.processes


def with_config(image: Path, config: dict[str, Any]) -> str:
    """Returns a copy of an image that has a configuration, as those of registries do."""
    copy, text = image.with_name("configured.sif"), image.with_name("oci-config.json")
    shutil.copy(image, copy)
    copy.chmod(0o644)
    text.write_text(json.dumps(config))
    command = ["apptainer", "sif", "add", "--datatype", "6", "--groupid", "1", str(copy), str(text)]
    command[3:3] = ["--filename", "oci-config.json"]
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


async def test_a_dockerfile_is_built_and_its_workdir_and_variables_hold(
    making: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRORL_CACHE", str(tmp_path / "cache"))
    await ImageCache().build("base", str(making.image))
    (making.directory / "Dockerfile").write_text(
        "FROM local:base AS build\nRUN echo made >/made\nFROM local:base\nENV A=image\n"
        "COPY --from=build /made /opt/made\nCOPY data /opt/data\nWORKDIR /opt\n"
    )
    (making.directory / "data").write_text("data\n")
    environment = await making.started({"docker_image": None})
    done = await environment.exec("pwd; cat made data; echo $A")
    assert done.stdout == "/opt\nmade\ndata\nimage\n"
    broken = making.new({"docker_image": None})
    (making.directory / "Dockerfile").write_text("FROM local:base\nRUN exit 3\n")
    from harbor.environments.base import SandboxBuildFailedError

    with pytest.raises(SandboxBuildFailedError, match="line 2"):
        await broken.start(force_build=False)


def test_a_dockerfile_that_cannot_be_read_is_refused_with_its_line(making: Making) -> None:
    (making.directory / "Dockerfile").write_text("FROM local:base\nFORM other\n")
    with pytest.raises(ValueError, match="Dockerfile, line 2"):
        making.new({"docker_image": None})
