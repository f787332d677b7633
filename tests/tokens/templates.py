"""Chat templates as their models' publishers ship them, from packages that carry copies.

TRL has those of many models; llama.cpp, in the source release of llama-cpp-python, has others.
"""

import subprocess
import sys
import tarfile
import tempfile
from importlib import resources
from pathlib import Path

from prorl_service.sandbox.cache import cache_root

RELEASE = "llama-cpp-python==0.3.36"


def of_trl(name: str) -> str:
    return resources.files("trl").joinpath("chat_templates", f"{name}.jinja").read_text()


def of_llama_cpp(name: str) -> str:
    return (fetch() / f"{name}.jinja").read_text()


def fetch() -> Path:
    """Returns the directory of llama.cpp's templates; downloads 76 MB unless they are cached."""
    target = cache_root() / "chat-templates" / RELEASE
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as directory:
            _download(Path(directory))
            [release] = Path(directory).glob("*.tar.gz")
            whole = Path(directory, "templates")
            whole.mkdir()
            _unpack(release, whole)
            whole.rename(target)
    return target


def _download(directory: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "download"]
    source = ["--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(directory), RELEASE]
    subprocess.run([*pip, *source], check=True, stderr=subprocess.DEVNULL)


def _unpack(release: Path, target: Path) -> None:
    with tarfile.open(release) as archive:
        for member in archive:
            path = Path(member.name)
            if path.suffix == ".jinja" and path.parent.name == "templates" and member.isfile():
                content = archive.extractfile(member)
                assert content is not None
                (target / path.name).write_bytes(content.read())
