"""Bubblewrap needs no root: the same as an ordinary user, whoever runs these tests."""

import os
import subprocess
import sys
from pathlib import Path

import ptyprocess
import pydantic

ROOT = Path(__file__).parents[2]

USE = """
import asyncio, os
from prorl_service.sandbox import provider
from prorl_service.sandbox.base import SandboxLimits

async def main():
    assert os.geteuid() != 0
    limits = SandboxLimits(processes=32, disk_mb=16, file_mb=4)
    sandbox = provider("auto").create(image=None, limits=limits)
    await sandbox.start()
    for command in COMMANDS:
        result = await sandbox.call_tool("bash", {"command": command}, timeout_s=20)
        print(result.output.strip())
    await sandbox.stop()

asyncio.run(main())
"""

COMMANDS = {
    "id -un; pwd; touch file; stat -c %U . file": "agent\n/workspace\nagent\nagent",
    "ls /root": "ls: cannot access '/root': No such file or directory\n[exit code 2]",
    "unshare --user id": "unshare: unshare failed: Operation not permitted\n[exit code 1]",
    "kill -9 1; ulimit -u": "32",
    "head -c 9000000 /dev/zero >big; wc -c <big": "File size limit exceeded\n4194304",
    "exit 3": "exit\n[exit code 3]\n[the shell exited and was restarted]",
    "echo alive": "alive",
}


def test_everything_works_as_an_ordinary_user() -> None:
    done = subprocess.run(
        [*as_ordinary_user(), "-c", f"COMMANDS = {list(COMMANDS)}\n{USE}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
        env={"PYTHONPATH": ":".join(map(str, python_path())), "PATH": "/usr/bin:/bin"},
    )
    assert done.stderr == ""
    assert done.stdout == "\n".join([*COMMANDS.values(), ""])


def python_path() -> list[Path]:
    return [ROOT, *{Path(module.__path__[0]).parent for module in (ptyprocess, pydantic)}]


def as_ordinary_user() -> list[str]:
    if os.geteuid() != 0:
        return [sys.executable]
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # A Python below root's home is out of an ordinary user's reach; the system's is not.
    reachable = [
        f"{sys.base_prefix}/bin/{python}",
        f"/usr/local/bin/{python}",
        f"/usr/bin/{python}",
    ]
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    for path in reachable:
        if subprocess.run([*nobody, "test", "-x", path], check=False).returncode == 0:
            return [*nobody, path]
    raise AssertionError(f"an ordinary user needs one of {reachable}")
