"""Checks of what this host offers to sandboxes, one small function per question.

They try things where they can, as the user that the containers get: `nobody` for root. Whether a
kind of sandbox works is up to its provider (`doctor` asks it). Checks change nothing.
"""

import asyncio
import getpass
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from prorl_service.sandbox.cache import cache_root
from prorl_service.sandbox.host import cgroups, seccomp
from prorl_service.sandbox.host.zygotes import container_user, failure_of
from prorl_service.sandbox.images.dockerfiles import DockerfileBuilders
from prorl_service.sandbox.images.dockerfiles.buildah import INSTALL as BUILDAH
from prorl_service.sandbox.images.dockerfiles.conversion import Conversion
from prorl_service.sandbox.images.host_image import make_host_image
from prorl_service.sandbox.images.store import remove_tree
from prorl_service.sandbox.kinds.apptainer import OPTIONS

COMMAND_TIMEOUT_S = 20.0
DOCKER_SOCKET = "/var/run/docker.sock"
"""Socket of a daemon that is root; that of rootless Docker is its user's."""
WANTED_SPACE_GB = 20
WANTED_MEMORY_GB = 4
WANTED_CONTROLLERS = {"cpu", "memory", "pids"}
DELEGATE = (
    f"systemd-run {'' if os.geteuid() == 0 else '--user '}--scope -p Delegate=yes "
    "-p MemoryMax=64G prorl serve ..., where systemd runs; "
    "a Slurm job has limits of its own: --mem, --cpus-per-task"
)


class Status(StrEnum):
    OK = "ok"
    LIMITED = "limited"
    """Works, but not as well as it could, or is needed for some things only."""
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    status: Status
    found: str
    next_step: str = ""
    """Exact next step; empty if there is nothing to do."""


def kernel() -> Finding:
    release = platform.release()
    version = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
    newer = "boot a newer kernel: 5.14 or later"
    if version < (5, 11):
        return Finding(Status.LIMITED, f"Linux {release}: no overlays without root", newer)
    if version < (5, 14):
        return Finding(Status.LIMITED, f"Linux {release}: no limit on processes", newer)
    return Finding(Status.OK, f"Linux {release}")


def user_namespaces() -> Finding:
    failure = _try(["unshare", "--map-root-user", "--mount", "--pid", "--net", "--fork", "true"])
    if failure is None:
        return Finding(Status.OK, "made one, with mounts, processes and network of its own")
    return Finding(Status.MISSING, failure, _how_to_get_user_namespaces())


def _how_to_get_user_namespaces() -> str:
    if _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "`prorl install sandboxes` gives the sandboxes' programs an AppArmor profile"
    for name, off in (("kernel/unprivileged_userns_clone", "0"), ("user/max_user_namespaces", "0")):
        if _read(f"/proc/sys/{name}") == off:
            return f"as root: sysctl {name.replace('/', '.')}={'1' if 'clone' in name else '65536'}"
    return (
        "in a container: --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
        "--cap-add SYS_ADMIN; elsewhere ask the administrator of the machine"
    )


def overlays() -> Finding:
    failure = _try(
        [
            *("unshare", "--map-root-user", "--mount", "sh", "-euc"),
            "mount -t tmpfs tmpfs /mnt; cd /mnt; mkdir lower upper work merged; "
            "mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work,userxattr "
            "overlay merged; echo x >merged/file",
        ]
    )
    if failure is None:
        return Finding(Status.OK, "mounted one in a user namespace")
    return Finding(Status.MISSING, failure, "Linux 5.11 or later, and user namespaces")


def image_files() -> Finding:
    apptainer = shutil.which("apptainer") or shutil.which("singularity")
    if apptainer is None:
        return Finding(Status.MISSING, "no Apptainer", "prorl install sandboxes")
    version = subprocess.run(
        [apptainer, "--version"], capture_output=True, text=True, check=False, timeout=10
    ).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="prorl-doctor-") as directory:
        work = Path(directory)
        binds = make_host_image(work / "image")
        if (user := container_user()) is not None:
            os.chown(work, user, user)
        build = [apptainer, "--silent", "build", "image.sif", "image"]
        run = [apptainer, "--silent", "exec", *OPTIONS, "--bind", ",".join(binds), "image.sif"]
        failure = _try(build, cwd=directory) or _try([*run, "/usr/bin/true"], cwd=directory)
    if failure is None:
        return Finding(Status.OK, f"{version}: built one and ran a command in it")
    return Finding(
        Status.LIMITED,
        f"{version}: {failure}",
        "prorl install sandboxes, or keep images as directories",
    )


def dockerfiles() -> Finding:
    """Tries the builders of Dockerfiles."""
    with tempfile.TemporaryDirectory(prefix="prorl-doctor-") as directory:
        try:
            failures = asyncio.run(DockerfileBuilders().failures(Path(directory)))
        finally:
            remove_tree(Path(directory))  # files of subordinate ids, too
    working = [name for name, why in failures.items() if why is None]
    others = [f"not {name}: {why}" for name, why in failures.items() if why is not None]
    if not working:
        return Finding(Status.LIMITED, "; ".join(others), BUILDAH)
    if working == [Conversion.name]:
        found = "; ".join([*working, *others])
        return Finding(Status.LIMITED, f"simple ones only: {found}", BUILDAH)
    return Finding(Status.OK, "; ".join(working))


def fuse() -> Finding:
    if not Path("/dev/fuse").exists():
        return Finding(
            Status.LIMITED,
            "no /dev/fuse: image files cannot be mounted",
            "as root: modprobe fuse; for a container: --device /dev/fuse",
        )
    if _try(["test", "-r", "/dev/fuse", "-a", "-w", "/dev/fuse"]) is not None:
        step = "as root: chmod 666 /dev/fuse"
        return Finding(Status.LIMITED, "/dev/fuse is closed to the service", step)
    return Finding(Status.OK, "/dev/fuse is open to all")


def subordinate_ids() -> Finding:
    if os.geteuid() == 0:
        return Finding(Status.OK, "root needs none")
    user = getpass.getuser()
    without = [path for path in ("/etc/subuid", "/etc/subgid") if user not in _first_fields(path)]
    if not without:
        return Finding(Status.OK, f"{user} has ranges in /etc/subuid and /etc/subgid")
    return Finding(
        Status.LIMITED,
        f"no ranges for {user} in {' and '.join(without)}; sandboxes need none",
        f"to build images: as root, usermod --add-subuids 100000-165535 "
        f"--add-subgids 100000-165535 {user}",
    )


def _first_fields(path: str) -> set[str]:
    return {line.split(":")[0] for line in _read(path).splitlines()}


def system_call_filter() -> Finding:
    machine = platform.machine()
    if "errno" not in _read("/proc/sys/kernel/seccomp/actions_avail").split():
        return Finding(Status.MISSING, "not in this kernel", "a kernel with CONFIG_SECCOMP_FILTER")
    if machine not in seccomp.ARCHITECTURES:
        known = ", ".join(seccomp.ARCHITECTURES)
        return Finding(Status.LIMITED, f"{machine} has no filter", f"run the service on {known}")
    return Finding(Status.OK, f"known for {machine}")


def control_groups() -> Finding:
    try:
        directory = cgroups.own_group()
    except OSError:
        return Finding(
            Status.LIMITED, "no cgroup v2", "boot with systemd.unified_cgroup_hierarchy=1"
        )
    missing = WANTED_CONTROLLERS - set(_read(directory / "cgroup.controllers").split())
    if missing:
        found = f"{directory} lacks {', '.join(sorted(missing))}"
        return Finding(Status.LIMITED, found, DELEGATE)
    if not os.access(directory / "cgroup.procs", os.W_OK):
        return Finding(Status.LIMITED, f"{directory} belongs to another user", DELEGATE)
    return Finding(Status.OK, f"{directory} is writable and has all controllers")


def space() -> Finding:
    cache = cache_root()
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    free_gb = shutil.disk_usage(existing).free / 1e9
    found = f"{free_gb:.0f} GB free for {cache}"
    if not os.access(existing, os.W_OK):
        step = "set PRORL_CACHE to a writable directory"
        return Finding(Status.MISSING, f"{existing} is not writable", step)
    if free_gb < WANTED_SPACE_GB:
        step = f"set PRORL_CACHE to a directory with {WANTED_SPACE_GB} GB free"
        return Finding(Status.LIMITED, found, step)
    return Finding(Status.OK, found)


def memory() -> Finding:
    lines = _read("/proc/meminfo").splitlines()
    values = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
    free_gb = values["MemAvailable"] / 1e6
    found = f"{free_gb:.0f} GB available; what sandboxes write is in memory too"
    if free_gb < WANTED_MEMORY_GB:
        return Finding(Status.LIMITED, found, "run fewer sandboxes: prorl serve --run-workers")
    return Finding(Status.OK, found)


def podman_storage() -> Finding:
    podman = shutil.which("podman")
    if podman is None:
        return Finding(Status.LIMITED, "no Podman", "prorl install podman")
    shown = "{{.Store.GraphDriverName}} {{.Store.GraphRoot}}"
    told = subprocess.run(
        [podman, "info", "--format", shown],
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
    )
    if told.returncode != 0:
        return Finding(Status.LIMITED, told.stderr.strip(), "see why: podman info")
    driver, _, root = told.stdout.strip().partition(" ")
    if file_system(Path(root)).startswith("nfs"):
        step = "set graphroot to a local disk, in ~/.config/containers/storage.conf"
        return Finding(Status.LIMITED, f"{root} is on NFS, which Podman does not support", step)
    if driver == "vfs":
        return Finding(Status.LIMITED, "vfs: copies every layer", "prorl install podman")
    return Finding(Status.OK, f"{driver}, in {root}")


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Returns the type of the file system that `path` is on; empty if it is unknown."""
    found = ("", "")
    for line in _read(mounts).splitlines():
        _, point, kind, *_ = line.split()
        if path.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, kind)
    return found[1]


def docker_socket() -> Finding:
    if not os.access(DOCKER_SOCKET, os.F_OK):
        return Finding(Status.OK, f"no {DOCKER_SOCKET}")
    found = f"users of {DOCKER_SOCKET} have the rights of root on this host"
    if not os.access(DOCKER_SOCKET, os.W_OK):
        return Finding(Status.OK, f"{found}; this user is none")
    step = "use rootless Docker or Podman, which need no such socket"
    return Finding(Status.LIMITED, f"{found}; this user is one", step)


def slurm() -> Finding:
    job = os.environ.get("SLURM_JOB_ID")
    if job is not None:
        return Finding(Status.OK, f"in job {job}")
    if shutil.which("sbatch") is None:
        return Finding(Status.LIMITED, "not a Slurm cluster")
    return Finding(Status.OK, "sbatch is installed, but this is not a job")


def _try(argv: list[str], *, cwd: str = "/", as_service: bool = True) -> str | None:
    """Runs a command. Returns why it failed, in one line, or None if it did not."""
    user = container_user() if as_service else None
    variables = {"HOME": cwd} if as_service else {}
    failure = failure_of(argv, user, timeout_s=COMMAND_TIMEOUT_S, cwd=cwd, variables=variables)
    return None if failure is None else failure.splitlines()[-1]


def _read(path: Path | str) -> str:
    """Returns the stripped text; empty if it cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
