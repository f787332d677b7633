"""The newest release of a package of Python or npm, unpacked and not installed."""

import json
import subprocess
import sys
import tarfile
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
ANY = ["--ignore-requires-python", "--only-binary=:all:"]


def wheel(package: str, release: str, directory: Path) -> str:
    """Unpacks the Python of a wheel, the newest if `release` is empty, and returns its release."""
    wanted = f"{package}=={release}" if release else package
    subprocess.run([*PIP, *ANY, "-d", str(directory), wanted], check=True)
    [file] = directory.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(directory, [one for one in archive.namelist() if one.endswith(".py")])
    file.unlink()
    return file.name.split("-")[1]


def about(package: str) -> dict[str, Any]:
    """Returns npm's description of the newest release."""
    done = subprocess.run(
        ["npm", "view", package, "--json"], capture_output=True, text=True, check=True
    )
    described: dict[str, Any] = json.loads(done.stdout)
    return described


def published(described: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(described["time"][described["version"]])


def unpack(package: str, directory: Path) -> Path:
    """Unpacks an npm package, named with its release, and returns its directory."""
    directory.mkdir(parents=True)
    subprocess.run(
        ["npm", "pack", "--silent", package], cwd=directory, stdout=subprocess.DEVNULL, check=True
    )
    [file] = directory.glob("*.tgz")
    with tarfile.open(file) as archive:
        archive.extractall(directory, filter="data")
    file.unlink()
    [unpacked] = directory.iterdir()
    return unpacked
