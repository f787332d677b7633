import asyncio
import sys
from pathlib import Path

import psutil

from tests.programs import ran


def marker(image: Path, name: str = "marker") -> str:
    """Returns the content of /marker, or another file, in a SIF file."""
    offset = image.read_bytes().index(b"hsqs")
    command = ["unsquashfs", "-offset", str(offset), "-cat", str(image), name]
    return ran(*command, check=True).stdout


def files(root: Path) -> list[str]:
    """Returns everything in a cache except the directories that it always has."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.parent != root)


def litter(root: Path) -> list[str]:
    """Returns what only work in progress may leave: workspaces, locks, unfinished files."""
    return [
        name
        for name in files(root)
        if name.startswith("tmp/") or name.endswith("/lock") or "/.new-" in name
    ]


def builds(root: Path) -> list[int]:
    """Returns the ids of processes that work on builds for this cache."""
    found = []
    for process in psutil.process_iter(["environ"]):
        environment = process.info["environ"] or {}
        if environment.get("APPTAINER_TMPDIR", "").startswith(str(root)):
            found.append(process.pid)
    return found


USE = """
import asyncio, sys
from pathlib import Path
from prorl_service.sandbox.images import ImageCache

async def main():
    async with ImageCache(Path(sys.argv[1])).image(sys.argv[2]) as image:
        print(image, flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


async def use_in_other_process(root: Path, reference: str) -> asyncio.subprocess.Process:
    """Starts a process that prints the image's path and keeps the image until its input ends."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", USE, str(root), reference),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
