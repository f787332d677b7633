"""Tiny packages for npm and pip on this machine's disk, which install without a network."""

import io
import json
import os
import sys
import tarfile
import zipfile
from pathlib import Path

from prorl_service.gateway.harnesses.preset import Install


def npm_package(directory: Path, *, text: str = "console.log('tiny')\n") -> str:
    """Returns the version to install for `tiny-npm`."""
    path = directory / "tiny-npm-1.0.0.tgz"
    manifest = {"name": "tiny-npm", "version": "1.0.0", "scripts": {"postinstall": "touch ran"}}
    with tarfile.open(path, "w:gz") as archive:
        files = {"package.json": json.dumps(manifest), "cli.js": text, "docs/manual.md": "x"}
        for name, content in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            info.mode = 0o600
            archive.addfile(info, io.BytesIO(content.encode()))
    return f"file:{path}"


def wheel(directory: Path) -> str:
    """Returns the requirement of `tiny-pip`."""
    path = directory / "tiny_pip-1.0.0-py3-none-any.whl"
    about = "tiny_pip-1.0.0.dist-info"
    files = {
        "tiny_pip.py": "WORD = 'tiny'\n",
        f"{about}/entry_points.txt": "[console_scripts]\ntiny = tiny_pip:main\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: tiny-pip\nVersion: 1.0.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, f"{about}/RECORD": record}.items():
            archive.writestr(name, content)
    return f"tiny-pip @ {path.as_uri()}"


def packages(directory: Path) -> Install:
    return Install(
        version="1.0.0",
        npm={"tiny-npm": npm_package(directory)},
        pip=[wheel(directory)],
        needless=["node_modules/tiny-npm/docs", "node_modules/absent"],
    )


def fake_npm(directory: Path, script: str) -> dict[str, str]:
    """Returns an environment whose `npm` is a Python script."""
    directory.mkdir(exist_ok=True)
    path = directory / "npm"
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    return {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}
