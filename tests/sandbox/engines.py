"""Podman and Docker for tests: Podman with a store of its own, a throw-away daemon of Docker.

The daemon maps containers to users of their own, as root by `userns-remap`, for others by being
rootless. It touches no file of the machine: what it needs in /etc is in its own mount namespace.
"""

import asyncio
import atexit
import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from prorl_service.sandbox.cache import cache_root
from prorl_service.sandbox.host_checks import Status, subordinate_ids
from prorl_service.sandbox.images import ImageOptions
from prorl_service.sandbox.kinds import open_images
from tests.sandbox.images.debian import debian_directory

OURS = "PRORL_TEST_ENGINES"
"""Variable that names the engines whose settings are the tests' own: for child processes."""
ENGINES = ("podman", "docker")
RECORDS = cache_root() / "test-images" / "engines"
"""Root of the stores that have the tests' image."""

STORAGE = """[storage]
driver = "overlay"
graphroot = "{0}/root"
rootless_storage_path = "{0}/root"
runroot = "{0}/run"
"""
REMAPPED = """
mount --make-rprivate /
for file in passwd group; do
    { cat /etc/$file; echo "dockremap:x:997:997::/:/bin/false"; } >$file
    mount --bind $file /etc/$file
done
echo dockremap:400000:65536 >subids
for file in subuid subgid; do mount --bind subids /etc/$file; done
exec "$@" --userns-remap=dockremap
"""
ROOTLESS = (
    *("rootlesskit", "--net=host", "--copy-up=/etc", "--copy-up=/run", "--state-dir=kit"),
    # Of another daemon; links in a directory of our own by now.
    *("sh", "-euc", 'rm -f /run/docker /run/containerd /run/xtables.lock; exec "$@"', "dockerd"),
)
START_TIMEOUT_S = 60


@functools.cache
def use(kind: str) -> None:
    """Has this process and its children use the tests' own engine. Skips tests without Docker."""
    ours = os.environ.get(OURS, "").split()
    if kind in ENGINES and kind not in ours:
        _use_docker() if kind == "docker" else _use_podman(cache_root() / "test-images/podman")
        os.environ[OURS] = " ".join([*ours, kind])


@functools.cache
def engine_image(kind: str) -> str:
    """Returns the reference of a small Debian, imported once; callers may be in an event loop."""
    use(kind)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _image(kind)).result()


def has_no_buildx() -> bool:
    command = ["docker", "buildx", "version"]
    return subprocess.run(command, capture_output=True, check=False).returncode != 0


async def _image(kind: str) -> str:
    directory = debian_directory()
    images = open_images(kind, ImageOptions(root=RECORDS))
    name = f"debian-{directory.name}"
    RECORDS.mkdir(parents=True, exist_ok=True)
    with (RECORDS / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of other workers
        if f"local:{name}" not in {one for entry in await images.entries() for one in entry.names}:
            await images.build(name, str(directory))
    return f"local:{name}"


def _use_podman(store: Path) -> None:
    if subordinate_ids().status is not Status.OK:
        pytest.skip("rootless Podman needs subordinate ids: PRORL_TEST_SUBIDS")
    store.mkdir(parents=True, exist_ok=True)
    settings = store / "storage.conf"
    settings.write_text(STORAGE.format(store))
    os.environ["CONTAINERS_STORAGE_CONF"] = str(settings)
    if os.geteuid() and "PYTEST_XDIST_WORKER" not in os.environ:
        # The process that keeps a rootless user's namespaces would outlive the tests.
        migrate = ["podman", "system", "migrate"]
        atexit.register(partial(subprocess.run, migrate, capture_output=True, check=False))


def _use_docker() -> None:
    if shutil.which("dockerd") is None or shutil.which("docker") is None:
        pytest.skip("Docker is not installed: its kind is tested on a daemon of the test's own")
    directory = Path(tempfile.mkdtemp(prefix="docker-", dir="/tmp"))
    directory.chmod(0o711)  # for the users that root is mapped to
    (directory / "runtime").mkdir(mode=0o700)
    socket = f"unix://{directory}/docker.sock"
    command = [
        *("dockerd", "--host", socket, "--data-root", f"{directory}/data"),
        *("--exec-root", f"{directory}/exec", "--pidfile", f"{directory}/pid"),
        *("--iptables=false", "--ip6tables=false", "--bridge=none"),
    ]
    if os.geteuid() == 0:
        command = ["unshare", "--mount", "sh", "-euc", REMAPPED, "dockerd", *command]
    else:
        command = [*ROOTLESS, *command, "--rootless"]
    with (directory / "log").open("wb") as log:
        variables = {**os.environ, "XDG_RUNTIME_DIR": str(directory / "runtime")}
        daemon = subprocess.Popen(command, stdout=log, stderr=log, cwd=directory, env=variables)

    def end() -> None:
        daemon.terminate()
        daemon.wait()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(end)
    os.environ["DOCKER_HOST"] = socket
    deadline = time.monotonic() + START_TIMEOUT_S
    while subprocess.run(["docker", "version"], capture_output=True, check=False).returncode:
        assert daemon.poll() is None, (directory / "log").read_text()
        assert time.monotonic() < deadline, (directory / "log").read_text()
        time.sleep(0.1)
