"""Control groups: the files that are written, and the kernel's part where it can be tested."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from prorl_service.sandbox.base import SandboxLimits
from prorl_service.sandbox.host import cgroups

LIMITS = SandboxLimits(memory_mb=100, processes=50, cpus=1.5)


@pytest.fixture
def delegated(tmp_path: Path) -> Path:
    """Returns a stand-in for a delegated group: plain files without the kernel's part."""
    (tmp_path / "cgroup.controllers").write_text("cpu io memory pids\n")
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n4711\n")
    return tmp_path


def test_the_service_makes_room_for_groups_of_sandboxes(delegated: Path) -> None:
    delegation = cgroups.Delegation(delegated)
    assert delegation.controllers == {"cpu", "memory", "pids"}
    assert (delegated / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert (delegated / f"service-{os.getpid()}" / "cgroup.procs").read_text() == "4711"


def test_a_group_has_the_limits_of_its_sandbox(delegated: Path) -> None:
    group = cgroups.Delegation(delegated).group(LIMITS)
    group.add(42)
    (path,) = delegated.glob("sandbox-*")
    assert {file.name: file.read_text() for file in path.iterdir()} == {
        "memory.max": str(100 << 20),
        "memory.swap.max": "0",
        "pids.max": "50",
        "cpu.max": "150000 100000",
        "cgroup.procs": "42",
    }


def test_only_what_is_delegated_is_set(delegated: Path) -> None:
    (delegated / "cgroup.controllers").write_text("pids io\n")
    cgroups.Delegation(delegated).group(LIMITS)
    (path,) = delegated.glob("sandbox-*")
    assert [file.name for file in path.iterdir()] == ["pids.max"]


def test_a_delegation_needs_a_controller(delegated: Path) -> None:
    (delegated / "cgroup.controllers").write_text("hugetlb\n")
    with pytest.raises(OSError, match="no controller"):
        cgroups.Delegation(delegated)


def test_root_does_not_take_a_group_that_was_not_delegated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRORL_CGROUP", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(OSError, match=r"not delegated|no cgroup v2"):
        cgroups.delegated_group()


def hierarchy() -> Path:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, path, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(path, os.W_OK):
            return Path(path)
    pytest.skip("the kernel's part needs a cgroup v2 hierarchy that this user may write")


@pytest.mark.processes
def test_removing_a_group_ends_its_processes() -> None:
    path = hierarchy() / f"prorl-test-{os.getpid()}"
    group = cgroups.ControlGroup(path, LIMITS, frozenset())
    shell = subprocess.Popen(["sh", "-c", "read line; sleep 1000 & sleep 1000"], stdin=-1)
    try:
        group.add(shell.pid)
        assert shell.stdin is not None
        shell.stdin.close()
        asyncio.run(group.remove())
        assert shell.wait(10) == -9
        assert not path.exists()
    finally:
        shell.kill()
