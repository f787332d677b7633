"""Sandboxes of Podman next to Apptainer's and bubblewrap's: starts, a command, leftovers of kills.

`contract` runs the short tests of sandboxes on Podman, as the calling user and, for root, as
`nobody` as well; a failed test of `ESCAPES` counts as an escape. A quarter of an hour. Needs
`scripts/install-podman`.

*Cold*: no container of the image runs. *Warm*: one does.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import psutil

from bench import frame
from bench.frame import Found, Row
from bench.tools import rungs, starts
from bench.tools.timing import Action, compared, p50, row
from prorl_service.sandbox.kinds import podman
from tests.sandbox import engines
from tests.sandbox.sandboxes import running
from tests.sandbox.test_sandbox_lifecycle import DAEMONS, SERVICE

KINDS = ("podman", "apptainer", "bubblewrap")
ROUNDS, QUICK_ROUNDS = 12, 2
KILLS, QUICK_KILLS = 10, 2
DEATH_TIMEOUT_S = 10.0
ESCAPES = ("test_isolation", "test_hostile")
"""Modules with commands that must fail."""


async def _starts(quick: bool) -> list[Row]:
    ways = {"cold start": False, "warm start": True}
    contenders = {
        (kind, what): partial(starts.ours, kind, is_warm=is_warm)
        for kind in KINDS
        for what, is_warm in ways.items()
    }
    found = await starts.timed(contenders, 1, QUICK_ROUNDS if quick else ROUNDS)
    return [row(kind, what, times) for (kind, what), times in found.items()]


async def _commands(quick: bool) -> list[Row]:
    actions: dict[tuple[str, str], Action] = {}
    async with AsyncExitStack() as stack:
        for kind in KINDS:
            sandbox = await stack.enter_async_context(running(kind))
            actions[kind, "true"] = partial(rungs.tool(sandbox, "bash", "command"), "true")
        return await compared(actions, quick)


def times(quick: bool) -> Found:
    rows = [*asyncio.run(_starts(quick)), *asyncio.run(_commands(quick))]
    headline = {
        "start_p50_ms": p50(rows, "podman", "cold start"),
        "warm_start_p50_ms": p50(rows, "podman", "warm start"),
        "bash_p50_ms": p50(rows, "podman", "true"),
    }
    return Found(rows, headline)


def kills(quick: bool) -> Found:
    """Kills a service with three sandboxes at work, and counts what is left ten seconds later."""
    engines.engine_image("podman")
    number = QUICK_KILLS if quick else KILLS
    left = {"processes": 0, "containers": 0}
    for _ in range(number):
        before = _containers()
        service = subprocess.Popen(
            [sys.executable, "-c", SERVICE, "podman", DAEMONS],
            stdout=subprocess.PIPE,
            cwd=frame.ROOT,
            env={**os.environ, "PYTHONPATH": str(frame.ROOT)},
        )
        with service:
            assert service.stdout is not None
            processes = [psutil.Process(int(pid)) for pid in service.stdout.readline().split()]
            monitors = [one for one in psutil.process_iter() if one.name() == "conmon"]
            forked = psutil.Process(int(service.stdout.readline()))
            service.kill()
            _, alive = psutil.wait_procs([*processes, *monitors], timeout=DEATH_TIMEOUT_S)
            forked.kill()
        left["processes"] += sum(one.status() != psutil.STATUS_ZOMBIE for one in alive)
        left["containers"] += len(_containers() - before)
    rows = [{"what": f"{what} left by {number} kills", "count": n} for what, n in left.items()]
    return Found(rows, {"left_after_kill": sum(left.values())})


def _containers() -> set[str]:
    command = [*podman.engine().command, "ps", "--all", "--quiet"]
    return {*subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()}


def contract(quick: bool) -> Found:
    """Runs the tests of sandboxes on Podman."""
    users = {"root" if os.geteuid() == 0 else "user": ["scripts/test"]}
    if os.geteuid() == 0:
        users["nobody"] = ["env", "PRORL_TEST_SUBIDS=yes", "scripts/test-as-nobody"]
    rows = [_tested(user, command, quick) for user, command in users.items()]
    headline = {
        "escapes": sum(one["escapes"] for one in rows),
        "contract_tests": sum(one["passed"] for one in rows),
    }
    return Found(rows, headline)


def _tested(user: str, command: list[str], quick: bool) -> Row:
    paths = ["tests/sandbox/test_isolation.py"] if quick else ["tests/sandbox"]
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o777)
        report = Path(directory, "report.xml")
        subprocess.run(
            [*command, "-q", "--short", "-k", "podman", f"--junitxml={report}", *paths],
            cwd=frame.ROOT,
            check=False,
        )
        cases = list(ElementTree.parse(report).iter("testcase"))
    bad = [one for one in cases if one.find("failure") is not None or one.find("error") is not None]
    skipped = [one for one in cases if one.find("skipped") is not None]
    return {
        "user": user,
        "passed": len(cases) - len(bad) - len(skipped),
        "failed": len(bad),
        "skipped": len(skipped),
        "escapes": sum(one.get("classname", "").endswith(ESCAPES) for one in bad),
    }


if __name__ == "__main__":
    frame.run("podman", {"times": times, "kills": kills, "contract": contract})
