"""Turns a process in new namespaces into the first process of a sandbox in a container.

With an image, the container's root becomes the lower layer of an overlay whose upper layer is a
file system in memory of limited size: every sandbox sees the image unchanged and may write anywhere
in it. Other mounts of the container (its /proc, /dev, host files) stay behind. Without an image,
the root stays read-only, and the working directory and /tmp are mounted over it, in memory of
limited size. The process enters a user namespace that maps one user, the container's own, and drops
all capabilities; as root it keeps those for its files.
"""

import contextlib
import fcntl
import os
import resource
import socket
import struct
from typing import NamedTuple

from . import accounts, linux

NAMESPACES = (
    linux.CLONE_NEWPID
    | linux.CLONE_NEWNS
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWCGROUP
)
CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_SETGID, CAP_SETUID = 0, 1, 3, 4, 6, 7
CAPABILITIES_FOR_FILES = sum(
    1 << number
    for number in (CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_FSETID, CAP_SETGID, CAP_SETUID)
)
"""Capabilities for its own files only: no mounts, devices, network, tracing."""

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = {
    **{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"},
    "ptmx": "pts/ptmx",
}
SHARED_MEMORY_MB = 64
SYSTEM_V = {
    "shmall": f"{(SHARED_MEMORY_MB << 20) // resource.getpagesize()}",
    "msgmni": "128",
    "sem": "250 32000 32 128",
}
"""Limits on what outlives processes: shared memory, queues of 16 KB, 2 MB of semaphores."""
OF_USER = {
    "max_inotify_instances": "8",
    "max_inotify_watches": "8192",
    "max_fanotify_groups": "8",
    "max_fanotify_marks": "8192",
}
"""Limits on what the kernel counts per user: all sandboxes share 128, or a quarter of a GB."""
TCP_BUFFERS = {"tcp_rmem": "4096 131072 262144", "tcp_wmem": "4096 16384 262144"}
"""Minimum, initial and maximum of a connection; the kernel's own maximum is 4 to 6 MB."""
MAX_TERMINALS = 64
"""Limit of a sandbox: the host has some 3000 for all, and a shell needs one to start."""
FILES_PER_MB = 256
HOST_NAME = "sandbox"

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


class Written(NamedTuple):
    """What is written in the sandbox, apart from what was there."""

    prefix: str
    """Path of the directory inside, without slashes around it."""
    directory: int
    """Descriptor of the directory that holds it, without what was there."""


def enter(
    *, runtime: str, workdir: str, disk_mb: int, user: int | str, of_image: bool
) -> list[Written]:
    """Enters the sandbox. Called once by the first process of `NAMESPACES`, the container's root.

    `runtime` is the container's directory with this program; its subdirectory `mnt` is empty,
    and `programs` is a mount.
    `user` is the process's user afterwards, by number or by a name of the image. With `of_image`,
    all of the root is writable; without, only `workdir` and /tmp, which share `disk_mb`.
    """
    linux.set_host_name(HOST_NAME)
    _bring_up_loopback()
    proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC)  # the container's: the new one is read-only
    for name, limit in SYSTEM_V.items():
        _write(proc, f"sys/kernel/{name}", limit)
    for name, limit in TCP_BUFFERS.items():
        _write(proc, f"sys/net/ipv4/{name}", limit)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    written = (_make_root if of_image else _cover_root)(runtime, workdir, disk_mb)
    account = accounts.find(user)
    _enter_user_namespace(proc, account)
    os.close(proc)
    if account.home:
        accounts.set_variables(account)
    linux.keep_capabilities(CAPABILITIES_FOR_FILES if account.user == 0 else 0)
    return written


def _write(directory: int, path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _make_root(runtime: str, workdir: str, disk_mb: int) -> list[Written]:
    root = _mount_overlay(f"{runtime}/mnt", disk_mb)
    upper = _directory(f"{runtime}/mnt/upper")  # out of reach of paths once the root has changed
    _mount_proc(f"{root}/proc")
    _mount_dev(f"{root}/dev")
    os.makedirs(root + runtime, exist_ok=True)
    for path in (runtime, f"{runtime}/programs"):  # a mount of its own within the other
        linux.mount(path, root + path, flags=linux.MS_BIND)
    _change_root(root)
    os.makedirs("/tmp", exist_ok=True)
    os.chmod("/tmp", 0o1777)
    os.makedirs(workdir, exist_ok=True)
    return [Written("", upper)]


def _directory(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _cover_root(runtime: str, workdir: str, disk_mb: int) -> list[Written]:
    temporary_mb = max(1, disk_mb // 4)
    _mount_proc("/proc")
    _mount_pts_and_shm("/dev")
    _mount_memory("/tmp", temporary_mb, "1777")
    _mount_memory(workdir, max(1, disk_mb - temporary_mb), "0755")
    return [Written(path.strip("/"), _directory(path)) for path in (workdir, "/tmp")]


def _enter_user_namespace(proc: int, account: accounts.Account) -> None:
    """Enters a user namespace last: it cannot undo earlier mounts, and its resources count."""
    linux.unshare(linux.CLONE_NEWUSER)
    user, group = f"{account.user} 0 1", f"{account.group} 0 1"
    for name, text in (("setgroups", "deny"), ("uid_map", user), ("gid_map", group)):
        _write(proc, f"self/{name}", text)
    for name, limit in OF_USER.items():
        with contextlib.suppress(FileNotFoundError):  # a kernel that does not count it
            _write(proc, f"sys/user/{name}", limit)


def _bring_up_loopback() -> None:
    with socket.socket() as any_socket:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _mount_overlay(base: str, disk_mb: int) -> str:
    _mount_memory(base, disk_mb, "0755")
    upper, work, root = (f"{base}/{name}" for name in ("upper", "work", "root"))
    for path in (upper, work, root):
        os.mkdir(path)
    layers = f"lowerdir=/,upperdir={upper},workdir={work},userxattr"
    linux.mount("overlay", root, "overlay", linux.MS_NOSUID | linux.MS_NODEV, layers)
    return root


def _mount_proc(path: str) -> None:
    os.makedirs(path, exist_ok=True)
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    # Its user owns the limits of its namespaces, and could raise them if /proc were writable;
    # any process could then leave those that are killed first when memory runs out.
    linux.mount("proc", path, "proc", flags | linux.MS_RDONLY)


def _mount_dev(path: str) -> None:
    os.makedirs(path, exist_ok=True)
    linux.mount("tmpfs", path, "tmpfs", linux.MS_NOSUID, "size=64k,mode=0755")
    for name in DEVICES:
        if os.path.exists(f"/dev/{name}"):
            with open(f"{path}/{name}", "w"):
                linux.mount(f"/dev/{name}", f"{path}/{name}", flags=linux.MS_BIND)
    for name, target in LINKS.items():
        os.symlink(target, f"{path}/{name}")
    for name in ("pts", "shm"):
        os.mkdir(f"{path}/{name}")
    _mount_pts_and_shm(path)
    read_only = linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID
    linux.mount("none", path, flags=read_only, options="size=64k,mode=0755")


def _mount_pts_and_shm(dev: str) -> None:
    options = f"newinstance,ptmxmode=0666,mode=0620,max={MAX_TERMINALS}"
    linux.mount("devpts", f"{dev}/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, options)
    _mount_memory(f"{dev}/shm", SHARED_MEMORY_MB, "1777")


def _mount_memory(path: str, size_mb: int, mode: str) -> None:
    options = f"size={size_mb}m,nr_inodes={size_mb * FILES_PER_MB},mode={mode}"
    linux.mount("tmpfs", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)


def _change_root(root: str) -> None:
    os.chdir(root)
    linux.pivot_root(".", ".")  # the old root lies over the new one now
    linux.unmount(".")
    os.chdir("/")
