"""Apptainer's own features: images, and the containers that sandboxes are forked from."""

import asyncio
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from prorl_service.errors import SandboxError, TaskError
from prorl_service.sandbox.base import SandboxLimits, SandboxProvider
from prorl_service.sandbox.host import zygotes
from prorl_service.sandbox.host.zygotes import container_user
from tests.sandbox.sandboxes import (
    bash,
    new_provider,
    new_sandbox,
    open_to_others,
    output,
    started,
)

pytestmark = pytest.mark.processes

PROGRAMS = ("bash", "ls", "cat", "mkdir", "rm", "sleep", "touch", "id")


@pytest.fixture
async def apptainer() -> AsyncIterator[SandboxProvider]:
    async with new_provider("apptainer") as provider:
        yield provider


@pytest.fixture
def tiny_image(tmp_path: Path) -> Path:
    """Returns a root directory with a shell but without Python."""
    return make_tiny_image(tmp_path / "image")


def make_tiny_image(image: Path) -> Path:
    for name in ("usr/bin", "etc", "proc", "dev", "tmp", "root", "var/tmp", ".singularity.d/env"):
        (image / name).mkdir(parents=True)
    (image / "bin").symlink_to("usr/bin")
    for name in PROGRAMS:
        program = shutil.which(name)
        assert program is not None
        shutil.copy(program, image / "usr/bin" / name)
    (image / "bin/sh").symlink_to("bash")
    listed = subprocess.check_output(["ldd", *image.glob("usr/bin/*")], text=True)
    for library in set(re.findall(r"(/\S+) \(0x", listed)):
        target = image / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    (image / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (image / ".singularity.d/env/90-environment.sh").write_text("export OF_THE_IMAGE=yes\n")
    belong_to_container_user(image)
    return image


def belong_to_container_user(image: Path) -> None:
    """Opens `image`; if the tests run as root, gives it to the user that runs the container."""
    open_to_others(image)
    if (user := container_user()) is not None:
        subprocess.run(["chown", "-hR", f"{user}:{user}", image], check=True)


def containers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.name() == "apptainer"]


async def test_a_directory_without_python_is_an_image(
    apptainer: SandboxProvider, tiny_image: Path
) -> None:
    async with started(apptainer, image=tiny_image) as sandbox:
        assert await output(sandbox, "id -u; pwd; echo $HOME") == "0\n/workspace\n/root"
        assert await output(sandbox, "type python3 || echo none") == (
            "bash: type: python3: not found\nnone"
        )
        await output(sandbox, "echo changed >/etc/passwd; rm /usr/bin/id; touch /new")
        await sandbox.upload("/etc/hosts", b"127.0.0.1 localhost")
    assert (tiny_image / "usr/bin/id").exists()
    assert not (tiny_image / "new").exists()
    assert (tiny_image / "etc/passwd").read_text().startswith("root")


async def test_variables_of_the_image_are_set(apptainer: SandboxProvider, tiny_image: Path) -> None:
    async with started(apptainer, image=tiny_image) as sandbox:
        assert await output(sandbox, "echo $OF_THE_IMAGE $PAGER") == "yes cat"


async def test_files_of_an_image_can_be_replaced_renamed_and_removed(
    apptainer: SandboxProvider,
) -> None:
    async with started(apptainer, SandboxLimits(disk_mb=64)) as sandbox:
        await output(sandbox, 'mv /usr/share /usr/was-share && test -n "$(ls /usr/was-share)"')
        await output(
            sandbox, "chmod 700 /etc/group; chown root:root /etc/passwd; rm -r /usr/lib/git-core"
        )
        assert await output(sandbox, "cat /root/.profile 2>&1 | head -c 0; ls -d /root") == "/root"


async def test_one_container_serves_all_sandboxes_of_an_image(
    apptainer: SandboxProvider, tiny_image: Path
) -> None:
    sandboxes = [new_sandbox(apptainer, image=tiny_image) for _ in range(16)]
    await asyncio.gather(*(sandbox.start() for sandbox in sandboxes))
    assert len(containers()) == 1
    names = [output(sandbox, f"touch {i}; ls") for i, sandbox in enumerate(sandboxes)]
    assert await asyncio.gather(*names) == [str(i) for i in range(16)]
    await asyncio.gather(*(sandbox.stop() for sandbox in sandboxes))
    await apptainer.close()
    assert containers() == []


@pytest.mark.parametrize("delay_ms", [0, 20, 60, 100, 150])
async def test_an_abandoned_start_leaves_the_container_to_others(
    apptainer: SandboxProvider, tiny_image: Path, delay_ms: int
) -> None:
    given_up = [new_sandbox(apptainer, image=tiny_image) for _ in range(2)]
    starts = [asyncio.create_task(sandbox.start()) for sandbox in given_up]
    other = new_sandbox(apptainer, image=tiny_image)
    start = asyncio.create_task(other.start())
    await asyncio.sleep(delay_ms / 1000)
    starts[0].cancel()
    await given_up[1].stop()
    await asyncio.wait(starts)
    with suppress(asyncio.CancelledError, SandboxError):
        await starts[1]
    await start
    assert await output(other, "echo here") == "here"
    assert other.server_pid is not None
    parent = psutil.Process(other.server_pid).parent()
    assert parent is not None
    await given_up[0].stop()
    assert [child.pid for child in parent.children()] == [other.server_pid]
    await other.stop()


@pytest.mark.parametrize("generation", [0, 1, 2])
async def test_a_killed_container_takes_its_sandboxes_along_and_is_replaced(
    apptainer: SandboxProvider, generation: int
) -> None:
    """Kills Apptainer's first process, its child, or the first process inside."""
    async with started(apptainer) as sandbox:
        await bash(sandbox, "setsid sleep 1000 & sleep 1000 &")
        (container,) = containers()
        everything = container.children(recursive=True)
        call = asyncio.create_task(bash(sandbox, "sleep 1000", timeout_s=1000))
        await sandbox.upload("the call is on its way", b"")
        victim = container
        for _ in range(generation):
            victim = next(child for child in victim.children() if "fuse" not in child.name())
        victim.kill()
        with pytest.raises(SandboxError, match="died"):
            await call
        async with started(apptainer) as next_one:
            assert await output(next_one, "echo here") == "here"
        _, alive = await asyncio.to_thread(psutil.wait_procs, everything, timeout=10)
        assert not alive


async def test_idle_containers_beyond_the_limit_are_ended(
    apptainer: SandboxProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygotes, "MAX_IDLE", 1)
    images = [make_tiny_image(tmp_path / name) for name in ("one", "two", "three")]
    async with started(apptainer, image=images[0]) as busy:
        for image in images[1:]:
            async with started(apptainer, image=image) as sandbox:
                await output(sandbox, "true")
        running = len(containers())
        assert await output(busy, "sleep 1; echo here") == "here"  # time for one to end
        assert (running, len(containers())) in {(3, 2), (2, 2)}
        assert await output(busy, "echo here") == "here"


async def test_a_file_that_is_no_image_is_refused(
    apptainer: SandboxProvider, tmp_path: Path
) -> None:
    (tmp_path / "file.sif").write_text("no image")
    belong_to_container_user(tmp_path)
    with pytest.raises(TaskError, match=r"cannot be used: the container failed: .*FATAL"):
        async with started(apptainer, image=tmp_path / "file.sif"):
            pass
    assert containers() == []


async def test_an_image_without_bash_is_refused(
    apptainer: SandboxProvider, tiny_image: Path
) -> None:
    (tiny_image / "usr/bin/bash").unlink()
    with pytest.raises(TaskError, match=r"cannot be used: .*bash"):
        async with started(apptainer, image=tiny_image):
            pass
