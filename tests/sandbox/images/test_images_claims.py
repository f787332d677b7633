"""Locks and leases as files: who holds what, and who is gone."""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson

from prorl_service.sandbox.images.claims import STALE_S, Claim, is_abandoned


def rewrite(claim: Claim, *, age_s: float = 0.0, **changes: object) -> None:
    holder = orjson.loads(claim.path.read_bytes())
    claim.path.write_bytes(orjson.dumps({**holder, **changes}))
    os.utime(claim.path, (time.time() - age_s,) * 2)


def test_one_has_it_until_it_lets_go(tmp_path: Path) -> None:
    first, second = (Claim(tmp_path / "made" / "lock") for _ in range(2))
    assert first.take()
    assert not second.take_over()
    second.release()
    assert first.path.exists()
    first.release()
    assert second.take()
    assert [path.name for path in first.path.parent.iterdir()] == ["lock"]


def test_a_dead_holder_on_this_machine_is_noticed_at_once(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "lock")
    claim.take()
    dead = subprocess.Popen(["true"])
    dead.wait()
    rewrite(claim, pid=dead.pid)
    assert is_abandoned(claim.path)
    rewrite(claim, pid=os.getpid(), started="1")  # the id went to another process
    assert is_abandoned(claim.path)


def test_a_holder_elsewhere_is_dead_when_its_heart_stopped(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "lock")
    claim.take()
    rewrite(claim, place="another machine", pid=1, age_s=STALE_S / 2)
    assert not Claim(claim.path).take_over()
    rewrite(claim, place="another machine", pid=1, age_s=STALE_S + 1)
    assert Claim(claim.path).take_over()


def test_of_many_that_take_over_one_succeeds(tmp_path: Path) -> None:
    for n in range(20):
        path = tmp_path / str(n) / "lock"
        stale = Claim(path)
        stale.take()
        rewrite(stale, started="1")
        claims = [Claim(path) for _ in range(8)]
        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(Claim.take_over, claims)) == 1
