"""The system-call filter of a sandbox, for what namespaces do not separate.

It refuses the kernel's key rings, sockets to the hypervisor (AF_VSOCK) and other rare families, and
the interfaces with most kernel holes: further user namespaces, bpf, io_uring, perf, userfaultfd.
Calls that make nameless files in memory seem not to exist, since such files could not be counted.
Children of the execution server, which is process 1, cannot change its limits, scheduling policy,
niceness, affinity or I/O priority, whether by its process, its group or its user. Everything else
is allowed. Written by hand because libseccomp's Python binding is rarely installed.
"""

import functools
import platform
import struct
from errno import EAFNOSUPPORT, ENOSYS, EPERM
from socket import AF_INET, AF_INET6, AF_NETLINK, AF_UNIX
from typing import NamedTuple

CLONE_NEWUSER = 0x10000000


class Architecture(NamedTuple):
    audit: int
    socket: int
    clone: int
    unshare: int
    memfd_create: int
    of_process: tuple[int, ...]
    """Numbers of prlimit64, sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr"""
    setpriority: int
    ioprio_set: int
    refused: tuple[int, ...]
    """Numbers of add_key, request_key, keyctl, perf_event_open, bpf, userfaultfd"""


ARCHITECTURES = {
    "x86_64": Architecture(
        *(0xC000003E, 41, 56, 272, 319),
        of_process=(302, 142, 144, 203, 314),
        setpriority=141,
        ioprio_set=251,
        refused=(248, 249, 250, 298, 321, 323),
    ),
    "aarch64": Architecture(
        *(0xC00000B7, 198, 220, 97, 279),
        of_process=(261, 118, 119, 122, 274),
        setpriority=140,
        ioprio_set=30,
        refused=(217, 218, 219, 241, 280, 282),
    ),
}
IO_URING = (425, 426, 427)
CLONE3 = 435
MEMFD_SECRET = 447
SERVER_PID = 1
PRIO_USER = 2
IOPRIO_WHO_USER = 3
X32_CALLS = 0x40000000
FAMILIES = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)

# struct seccomp_data: number, architecture, instruction pointer, six 64-bit arguments.
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
LOAD, RETURN, IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT = 0x20, 0x06, 0x15, 0x35, 0x45


@functools.cache
def program() -> bytes:
    """Returns a `struct sock_filter[]`, which allows all calls on machines with unknown numbers."""
    machine = ARCHITECTURES.get(platform.machine())
    return b"".join(_instructions(machine)) if machine else _allow()


def _instructions(machine: Architecture) -> list[bytes]:
    not_there = (CLONE3, machine.memfd_create, MEMFD_SECRET)
    new_user_namespace = [
        _load(FIRST_ARGUMENT),
        *_when(IF_ANY_BIT, CLONE_NEWUSER, [_refuse(EPERM)]),
        _allow(),
    ]
    to_the_server = [
        _load(FIRST_ARGUMENT),
        *_when(IF_EQUAL, SERVER_PID, [_refuse(EPERM)]),
        _allow(),
    ]
    rare_family = [
        _load(FIRST_ARGUMENT),
        *(step for family in FAMILIES for step in _when(IF_EQUAL, family, [_allow()])),
        _refuse(EAFNOSUPPORT),
    ]
    return [
        _load(ARCHITECTURE),
        _instruction(IF_EQUAL, machine.audit, if_true=1),
        _refuse(ENOSYS),
        _load(NUMBER),
        *_when(IF_AT_LEAST, X32_CALLS, [_refuse(ENOSYS)]),
        # A filter cannot see the flags of clone3; without it the C library uses clone.
        *(step for number in not_there for step in _when(IF_EQUAL, number, [_refuse(ENOSYS)])),
        *(
            step
            for number in machine.refused + IO_URING
            for step in _when(IF_EQUAL, number, [_refuse(EPERM)])
        ),
        *(step for number in machine.of_process for step in _when(IF_EQUAL, number, to_the_server)),
        *_when(IF_EQUAL, machine.setpriority, _of_others(PRIO_USER)),
        *_when(IF_EQUAL, machine.ioprio_set, _of_others(IOPRIO_WHO_USER)),
        *_when(IF_EQUAL, machine.clone, new_user_namespace),
        *_when(IF_EQUAL, machine.unshare, new_user_namespace),
        *_when(IF_EQUAL, machine.socket, rare_family),
        _allow(),
    ]


def _of_others(whole_user: int) -> list[bytes]:
    """Refuses calls whose (kind, who) names the server, its group, or a whole user."""
    return [
        _load(SECOND_ARGUMENT),
        *_when(IF_EQUAL, SERVER_PID, [_refuse(EPERM)]),
        _load(FIRST_ARGUMENT),
        *_when(IF_EQUAL, whole_user, [_refuse(EPERM)]),
        _allow(),
    ]


def _when(condition: int, operand: int, then: list[bytes]) -> list[bytes]:
    return [_instruction(condition, operand, if_false=len(then)), *then]


def _load(offset: int) -> bytes:
    return _instruction(LOAD, offset)


def _allow() -> bytes:
    return _instruction(RETURN, 0x7FFF0000)


def _refuse(errno: int) -> bytes:
    return _instruction(RETURN, 0x00050000 | errno)


def _instruction(code: int, operand: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)
