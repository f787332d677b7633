"""Podman's and Docker's own features: the door, their processes, what images configure."""

import asyncio
import os
import subprocess
from pathlib import Path

import psutil
import pytest

from prorl_service.errors import SandboxError
from prorl_service.sandbox.host_checks import file_system
from prorl_service.sandbox.images import ImageOptions
from prorl_service.sandbox.images.engine_images import EngineImages
from prorl_service.sandbox.kinds import docker, make, podman
from prorl_service.sandbox.kinds.engine import EngineProvider
from tests.sandbox import engines
from tests.sandbox.images.oci import Layout
from tests.sandbox.sandboxes import DOCKER, LIMITS, Kind, bash, new_provider, output, started
from tests.sandbox.test_apptainer import make_tiny_image

pytestmark = pytest.mark.processes


@pytest.fixture(params=["podman", DOCKER])
def engine(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    engines.use(kind)
    return kind


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's containers can have the host's root")
def test_a_container_whose_root_is_the_hosts_is_refused() -> None:
    engines.use("podman")
    with pytest.raises(SandboxError, match="their root is the host's") as refusal:
        EngineProvider(podman.engine(), podman.OPTIONS, ImageOptions(), install_hint="no")
    assert not refusal.value.retryable


def test_the_message_of_an_engine_that_fails_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "podman").write_text("#!/bin/sh\necho no subuid ranges >&2; exit 1\n")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match="podman does not work: no subuid ranges") as refusal:
        make("podman", ImageOptions(), None)
    assert "prorl install podman" in refusal.value.hint


def relatives(zygote: psutil.Process, whose: str) -> list[psutil.Process]:
    """Returns the engine's client, which is a child of ours, or the monitor of the container."""
    if whose == "client":
        return [one for one in psutil.Process().children() if one.name() in engines.ENGINES]
    monitor = zygote.parent()
    return [monitor] if monitor else []


@pytest.mark.parametrize("whose", ["client", "monitor"])
async def test_a_container_whose_engine_is_killed_is_replaced(engine: Kind, whose: str) -> None:
    async with new_provider(engine) as provider, started(provider) as sandbox:
        assert sandbox.server_pid is not None
        zygote = psutil.Process(sandbox.server_pid).parent()
        assert zygote is not None
        await bash(sandbox, "setsid sleep 1000 & sleep 1000 &")
        inside = [zygote, *zygote.children(recursive=True)]
        victims = relatives(zygote, whose)
        assert victims
        for victim in victims:
            victim.kill()
        async with asyncio.timeout(30):
            while zygote.is_running():  # noqa: ASYNC110 - it is no child of ours
                await asyncio.sleep(0.01)
        async with started(provider) as next_one:
            assert await output(next_one, "echo here") == "here"
        _, alive = await asyncio.to_thread(psutil.wait_procs, inside, timeout=10)
        assert not alive
    command = (podman if engine == "podman" else docker).engine().command
    listed = [*command, "ps", "--all", "--quiet", "--filter", f"name=prorl-{os.getpid()}-"]
    assert await asyncio.to_thread(subprocess.check_output, listed) == b""


async def test_only_the_variables_of_an_image_are_used(
    engine: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its user, directory and program are not those of a sandbox."""
    for name in ("HTTP_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://user:secret@proxy.test:1")
    archive = Layout(tmp_path / "layout")
    config = {
        **{"User": "nobody", "WorkingDir": "/var", "Volumes": {"/data": {}}},
        **{"Entrypoint": ["/none"], "Cmd": ["none"], "Env": ["OF_THE_IMAGE=yes", "PATH=/bin"]},
    }
    archive.add_tree(make_tiny_image(tmp_path / "image"), tag="latest", config=config)
    reference = f"oci-archive:{archive.archive(tmp_path / 'image.tar')}"
    options = ImageOptions(root=tmp_path / "store")
    if engine == "docker":
        pytest.skip("Docker loads no OCI archives")
    async with make(engine, options, None) as provider:
        sandbox = provider.create(image=reference, limits=LIMITS)
        await sandbox.start()
        told = await sandbox.call_tool(
            "bash", {"command": "id -u; pwd; echo $OF_THE_IMAGE; env; ls /data"}, timeout_s=20
        )
        await sandbox.stop()
    assert told.output.startswith("0\n/workspace\nyes\n")
    assert "proxy" not in told.output.lower()
    assert "container=" not in told.output
    await EngineImages(podman.engine(), options).prune(everything=True)


def test_the_file_system_of_a_store_is_found(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("a / ext4 rw 0 0\nb:/home /home nfs4 rw 0 0\nc /home/me/local xfs rw 0 0\n")
    for path, kind in (
        ("/home/me/.local/share/containers", "nfs4"),
        ("/home/me/local/x", "xfs"),
        ("/homes", "ext4"),
    ):
        assert file_system(Path(path), mounts) == kind
