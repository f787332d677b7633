"""System calls that Python lacks, with the errors that Python has.

The numbers are those of x86_64 and aarch64, as in the system-call filter.
"""

import ctypes
import errno
import os
import platform
import signal

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

_CLONE, _PIVOT_ROOT, _CAPSET = (220, 41, 91) if platform.machine() == "aarch64" else (56, 155, 126)
_OPENAT2 = 437
_AT_FDCWD = -100
_RESOLVE_NO_MAGICLINKS = 2
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def fork_into(namespaces: int) -> int:
    """Like `os.fork`, with the child in new namespaces. Only for a process with one thread."""
    pid: int = _libc.syscall(_CLONE, ctypes.c_ulong(namespaces | signal.SIGCHLD), 0, 0, 0, 0)
    _check(pid)
    return pid


def unshare(namespaces: int) -> None:
    _check(_libc.unshare(namespaces))


def mount(
    source: str, target: str, filesystem: str | None = None, flags: int = 0, options: str = ""
) -> None:
    kind = filesystem.encode() if filesystem else None
    code = _libc.mount(
        source.encode(), target.encode(), kind, ctypes.c_ulong(flags), options.encode()
    )
    _check(code, f"mount {filesystem or 'bind'} on {target}")


def unmount(target: str) -> None:
    _check(_libc.umount2(target.encode(), MNT_DETACH), target)


def pivot_root(new_root: str, put_old: str) -> None:
    _check(_libc.syscall(_PIVOT_ROOT, new_root.encode(), put_old.encode()), new_root)


def open_without_magic(path: str, flags: int, mode: int) -> int:
    """Like `os.open`, but links of /proc into other processes' files are errors (Linux >= 5.6)."""
    how = (ctypes.c_uint64 * 3)(
        flags | os.O_CLOEXEC, mode if flags & os.O_CREAT else 0, _RESOLVE_NO_MAGICLINKS
    )
    fd: int = _libc.syscall(
        _OPENAT2, _AT_FDCWD, os.fsencode(path), ctypes.byref(how), ctypes.c_size_t(24)
    )
    if fd < 0 and ctypes.get_errno() == errno.ENOSYS:
        return os.open(path, flags, mode)
    _check(fd)
    return fd


def set_host_name(name: str) -> None:
    _check(_libc.sethostname(name.encode(), len(name)))


def prctl(option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(option, *padded))


def keep_capabilities(kept: int) -> None:
    """Drops all other capabilities for good, even across `exec`. `kept` is a set of bits."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for number in range(last + 1):
        if not kept >> number & 1:
            prctl(PR_CAPBSET_DROP, number)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    sets = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    _check(_libc.syscall(_CAPSET, header, sets))


def filter_system_calls(program: bytes) -> None:
    """Installs a filter, an array of `struct sock_filter`, for this process and its descendants."""

    class FilterProgram(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    prctl(PR_SET_NO_NEW_PRIVS, 1)
    # ctypes keeps both alive until the call returns.
    header = FilterProgram(len(program) // 8, program)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header))


def _check(result: int, what: str | None = None) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
