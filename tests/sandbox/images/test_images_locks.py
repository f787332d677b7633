"""Locks and leases as files: which are held, and which are abandoned."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from prorl_service.sandbox.images.locks import STALE_S, LockFile, is_abandoned


def rewrite(lock: LockFile, *, age_s: float = 0.0, **changes: object) -> None:
    holder = orjson.loads(lock.path.read_bytes())
    lock.path.write_bytes(orjson.dumps({**holder, **changes}))
    os.utime(lock.path, (time.time() - age_s,) * 2)


def test_one_holder_has_a_lock_until_its_release(tmp_path: Path) -> None:
    first, second = (LockFile(tmp_path / "made" / "lock") for _ in range(2))
    assert first.take()
    assert not second.take_over()
    second.release()
    assert first.path.exists()
    first.release()
    assert second.take()
    assert [path.name for path in first.path.parent.iterdir()] == ["lock"]


@pytest.mark.processes
def test_a_dead_holder_on_this_machine_is_noticed_immediately(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    lock.take()
    dead = subprocess.Popen(["true"])
    dead.wait()
    rewrite(lock, pid=dead.pid)
    assert is_abandoned(lock.path)
    rewrite(lock, pid=os.getpid(), started="1")  # the id went to another process
    assert is_abandoned(lock.path)


def test_a_holder_elsewhere_is_dead_once_its_heartbeat_stops(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    lock.take()
    rewrite(lock, place="another machine", pid=1, age_s=STALE_S / 2)
    assert not LockFile(lock.path).take_over()
    rewrite(lock, place="another machine", pid=1, age_s=STALE_S + 1)
    assert LockFile(lock.path).take_over()


def test_only_one_of_many_takes_over_a_lock(tmp_path: Path) -> None:
    for n in range(20):
        path = tmp_path / str(n) / "lock"
        stale = LockFile(path)
        stale.take()
        rewrite(stale, started="1")
        locks = [LockFile(path) for _ in range(8)]
        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(LockFile.take_over, locks)) == 1
